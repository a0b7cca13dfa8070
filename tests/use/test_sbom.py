"""The bill of materials beside an export: what is installed, said once, in CycloneDX's form."""

import json
from importlib import metadata

from polyfed.use.sbom import bill_of_materials, licence


def test_it_names_every_installed_package_once_with_its_version():
    bill = bill_of_materials()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    versions = {one["name"]: one["version"] for one in bill["components"]}
    assert versions["torch"] == metadata.version("torch")
    assert len(versions) == len(bill["components"]) > 30
    assert bill["metadata"]["component"]["name"] == "polyfed"
    assert "polyfed" not in versions
    plus = [one["purl"] for one in bill["components"] if "+" in one["version"]]
    assert all("%2B" in purl for purl in plus), "a plus sign in an address is written so"


def test_the_same_packages_give_the_same_bill():
    assert json.dumps(bill_of_materials()) == json.dumps(bill_of_materials())


def test_a_licence_is_an_expression_or_a_short_name(tmp_path):
    def said(*lines):
        folder = tmp_path / f"one-{len(list(tmp_path.iterdir()))}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.4", "Name: one", "Version: 1", *lines]) + "\n\n"
        )
        return licence(metadata.Distribution.at(folder))

    assert said("License-Expression: MIT", "License: other") == {"expression": "MIT"}
    assert said("Classifier: License :: OSI Approved :: BSD License") == {"license": {"name": "BSD License"}}
    assert said("License: Apache 2.0") == {"license": {"name": "Apache 2.0"}}
    assert said(f"License: {'Permission is hereby granted ' * 9}") is None
    assert said() is None
