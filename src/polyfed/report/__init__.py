"""What people see: tables, progress, figures, pages."""
