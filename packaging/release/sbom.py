"""Writes the bill of materials of a release as CycloneDX JSON, and checks it against the schema.

sbom.py ROOT COMMIT SECONDS FILE

SECONDS is the time of the commit. The same commit gives the same bytes.
"""

import datetime
import pathlib
import sys
import uuid

import dependencies
import versions
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseAcknowledgement
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
from packageurl import PackageURL

SCHEMA = SchemaVersion.V1_6
make_license = LicenseFactory().make_from_string


def component(name, license, purl, scope, used, version=None):
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=purl,
        purl=PackageURL.from_string(purl),
        scope=ComponentScope(scope),
        licenses=[make_license(license, license_acknowledgement=LicenseAcknowledgement.DECLARED)],
        properties=[Property(name="libstagehand:used", value=used)],
    )


def components(root):
    listed, licenses = dependencies.listed()
    for one in listed:
        yield component(one["name"], one["license"], one["purl"], one["scope"], one["used"])
    uses = {
        "required": "built into the Rust crates",
        "optional": "feature bindgen of the crate libstagehand-sys",
        "excluded": "tests and examples of the Rust crates",
    }
    for name, version, scope in dependencies.crates(root):
        yield component(name, licenses[name], f"pkg:cargo/{name}@{version}", scope, uses[scope], version)


def bill(root, commit, seconds):
    version = versions.version_of(root)
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"libstagehand:{version}:{commit}"))
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    bom.metadata.component = Component(
        type=ComponentType.LIBRARY,
        name="libstagehand",
        version=version,
        bom_ref=f"pkg:generic/libstagehand@{version}",
        purl=PackageURL.from_string(f"pkg:generic/libstagehand@{version}"),
        licenses=[make_license("Apache-2.0")],
        properties=[Property(name="libstagehand:commit", value=commit)],
    )
    for one in components(root):
        bom.components.add(one)
    bom.register_dependency(bom.metadata.component, bom.components)
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2) + "\n"


def main():
    root, commit, seconds, file = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4])
    text = bill(root, commit, seconds)
    if error := make_schemabased_validator(OutputFormat.JSON, SCHEMA).validate_str(text):
        sys.exit(f"the bill of materials is not CycloneDX {SCHEMA.to_version()}: {error}")
    file.write_text(text)


if __name__ == "__main__":
    main()
