"""The command that checks what is installed."""

from __future__ import annotations

import json
import re

from threedident.cli.doctor import PACKAGES, examine


def test_doctor(cli):
    said = cli("doctor").stdout
    assert re.search(r"^ok     Blender +4\.5\.", said, re.MULTILINE)
    assert re.search(r"^ok     render devices +cpu$", said, re.MULTILINE)
    findings = {f.name: f for f in examine()}
    columns = [line[7:].split(maxsplit=1)[0] for line in said.splitlines()[1:]]
    assert {name for name in findings if " " not in name} <= set(columns)  # none runs into another
    assert said.startswith("loading what is installed")
    document = json.loads(cli("doctor", "--json").stdout)
    assert document["good"] is True
    assert [each["name"] for each in document["findings"]] == list(findings)
    assert {name for group in PACKAGES.values() for name in group} <= set(findings)
    assert findings["bpy"].state == "ok"
