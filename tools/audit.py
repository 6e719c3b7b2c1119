"""What the package brings along: known by name, permissive, small, and asked about known vulnerabilities.

    python tools/audit.py                what can be seen without a network
    python tools/audit.py --ask          pip-audit too, where it is installed and can reach its database

Exit 1 on a finding. A database that cannot be reached is said and is no finding.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tools" / "client_dependencies.txt"
MOST_BYTES = 200 << 20
"""Bytes on disk of all that `pip install tinkex` brings."""
BOUNDED = {"torch"}
"""Dependencies whose next version could change results: they have an upper bound."""
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|PSF-2\.0|Zlib|CC0|0BSD|Unlicense|MPL)\b"
    r"|Mozilla Public License",
    re.IGNORECASE,
)
STRICT = re.compile(r"\b(A|L)?GPL|General Public License|SSPL|BUSL|Proprietary", re.IGNORECASE)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


def plain(name: str) -> str:
    """A distribution's name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(root: str) -> dict[str, metadata.Distribution]:
    """A distribution and all it needs without extras, as they are installed here."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [root]
    while wanted:
        name = plain(wanted.pop())
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        wanted += list(needs(found[name].requires or []))
    return found


def needs(lines: Sequence[str]) -> Iterator[str]:
    """The names of requirements that are no extra's."""
    for line in lines:
        if "extra ==" in line or "extra==" in line:
            continue
        matched = _NAME.match(line)
        if matched:
            yield matched[0]


def licence(found: metadata.Distribution) -> str:
    """What a distribution says of its licence."""
    about = found.metadata
    kinds = [each for each in about.get_all("Classifier") or [] if each.startswith("License ::")]
    short = [each.strip().partition("\n")[0] for each in about.get_all("License") or []]
    return "; ".join([*(about.get_all("License-Expression") or []), *kinds, *short])


def size(found: metadata.Distribution) -> int:
    """Bytes of a distribution on disk."""
    total = 0
    for file in found.files or []:
        place = Path(str(found.locate_file(file)))
        total += place.stat().st_size if place.is_file() else 0
    return total


def declared(project: dict[str, object]) -> Iterator[str]:
    """What is wrong with the requirements of pyproject.toml."""
    about = project["project"]
    assert isinstance(about, dict)
    groups: dict[str, list[str]] = {"": about["dependencies"], **about["optional-dependencies"]}
    if "<" not in about["requires-python"]:
        yield "requires-python has no upper bound"
    for group, lines in groups.items():
        for line in lines:
            matched = _NAME.match(line)
            name = plain(matched[0]) if matched else line
            bare = line.partition(";")[0]
            if group != "dev" and not re.search(r">=|==|~=", bare):
                yield f"{name} has no lower bound"
            if name in BOUNDED and "<" not in bare:
                yield f"{name} has no upper bound, and its next version could change results"


def offline(expected: set[str], found: dict[str, metadata.Distribution]) -> Iterator[str]:
    """What is wrong with what is installed."""
    for name in sorted(found.keys() - expected):
        yield f"{name} is new among what the client brings; put it on {LIST.name} if it is wanted"
    for name, each in sorted(found.items()):
        told = licence(each)
        if STRICT.search(told) or not PERMISSIVE.search(told):
            yield f"{name}: its licence is {told or 'not told'}"
    total = sum(map(size, found.values()))
    if total > MOST_BYTES:
        yield f"the client brings {total >> 20} MiB, at most {MOST_BYTES >> 20} are meant"


def asked(report: str) -> tuple[list[str], int]:
    """The findings in pip-audit's report, and how many distributions its database knew."""
    findings, known = [], 0
    for each in json.loads(report)["dependencies"]:
        if "skip_reason" in each:
            continue
        known += 1
        for vulnerability in each.get("vulns", []):
            better = ", ".join(vulnerability.get("fix_versions") or []) or "none yet"
            findings.append(f"{each['name']} {each['version']}: {vulnerability['id']}, mended in {better}")
    return findings, known


def ask() -> tuple[list[str], str]:
    """What pip-audit finds in everything installed here, and what became of asking."""
    installed = sorted({f"{plain(each.name)}=={each.version}" for each in metadata.distributions()})
    installed = [each for each in installed if not each.startswith("tinkex==")]
    with tempfile.TemporaryDirectory() as place:
        lines = Path(place) / "requirements.txt"
        lines.write_text("\n".join(installed) + "\n")
        words = ["--format", "json", "--progress-spinner", "off", "--no-deps", "--disable-pip"]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "pip_audit", "-r", str(lines), *words],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            findings, known = asked(done.stdout)
        except (ValueError, KeyError, subprocess.TimeoutExpired):
            return [], "pip-audit is not installed or cannot reach its database: nobody was asked"
    if not known:
        return [], "the package index here tells nothing of vulnerabilities: nobody was asked"
    return findings, f"pip-audit knew {known} of {len(installed)} distributions"


def main(arguments: Sequence[str]) -> int:
    """Look, say what was found, and answer how it went."""
    expected = {line.strip() for line in LIST.read_text().splitlines() if line.strip()}
    found = closure("tinkex")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    findings = [*declared(project), *offline(expected, found)]
    print(f"the client brings {len(found)} distributions, {sum(map(size, found.values())) >> 20} MiB")
    if "--ask" in arguments:
        more, how = ask()
        findings += more
        print(how)
    for each in findings:
        print(f"finding: {each}")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
