"""Build a release, look into its archives, and use them in clean environments.

    python scripts/check_release.py [--python PYTHON ...] [--to FOLDER]

Each Python that is supported and found installs the wheel with the newest packages, and the oldest
Python also with the oldest that the metadata allow; `smoke_test.py` then runs outside of the
repository. The first installs the source distribution. Needs a package index, and takes some
minutes per environment. Nothing is uploaded.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.11", "3.12", "3.13")
LEGAL = ("LICENSE",)
OF_SOURCES = ("README.md", "setup.cfg", "pyproject.toml", "CHANGELOG.md", "CITATION.cff")
UNWANTED = re.compile(
    r"(^|/)(tests?|benchmarks|zoo|runs|dist|build|\.[^/]+|__pycache__)(/|$)|\.pyc$|~$|\.(npz|gif)$"
)


class ReleaseError(Exception):
    """Something is not fit to be released."""


def main() -> None:
    """Check a release; raise at the first thing that is wrong."""
    parser = argparse.ArgumentParser(description="Build a release and check it.")
    parser.add_argument("--python", action="append", help="an interpreter; by default all found")
    parser.add_argument("--to", type=Path, help="new folder that keeps the archives")
    parsed = parser.parse_args()
    pythons = parsed.python or find_pythons()
    with tempfile.TemporaryDirectory(prefix="jaxagents-release-") as folder:
        place = Path(folder)
        wheel, sdist = build(place)
        check_wheel(wheel, package_files())
        check_sdist(sdist, package_files())
        metadata = metadata_of(wheel)
        oldest = place / "oldest.txt"
        oldest.write_text("\n".join(oldest_versions(metadata.get_all("Requires-Dist", []))))
        for index, python in enumerate(pythons):
            if index == 0:
                use(python, wheel, place / "oldest", ["-c", str(oldest)])
            use(python, wheel if index else sdist, place / f"newest-{index}")
        if parsed.to is not None:
            shutil.copytree(wheel.parent, parsed.to)


def find_pythons() -> list[str]:
    """Find the supported Pythons that start, the oldest first."""
    found = []
    for version in SUPPORTED:
        program = shutil.which(f"python{version}")
        if program and subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
            found.append(program)
        else:
            print(f"Python {version} is not here", flush=True)
    return found


def build(place: Path) -> tuple[Path, Path]:
    """Build both archives from the tracked files; return the wheel and the source distribution."""
    tools, source, archives = place / "tools", place / "source", place / "archives"
    venv.create(tools, with_pip=True)
    run(tools / "bin/pip", "install", "-q", "build", "twine")
    for name in tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    run(tools / "bin/python", "-m", "build", "--outdir", archives, source)
    run(tools / "bin/twine", "check", "--strict", *archives.iterdir())
    (wheel,), (sdist,) = archives.glob("*.whl"), archives.glob("*.tar.gz")
    return wheel, sdist


def tracked_files() -> list[str]:
    """List the files that git tracks here."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in names.split("\0") if name]


def package_files() -> set[str]:
    """List the tracked files of the package."""
    return {name for name in tracked_files() if name.startswith("jaxagents/")}


def check_wheel(path: Path, package: set[str]) -> None:
    """Check that a wheel holds the package, its licence and its command, and nothing else.

    Raises:
        ReleaseError: it does not.
    """
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    information = {name for name in contents if ".dist-info/" in name.partition("/")[0] + "/"}
    check_names(path, contents.keys() - information, package)
    for wanted in (*LEGAL, "entry_points.txt", "METADATA"):
        if not any(PurePosixPath(name).name == wanted for name in information):
            raise ReleaseError(f"{path.name} lacks {wanted}")
    check_contents(path, contents)


def check_sdist(path: Path, package: set[str]) -> None:
    """Check that a source distribution holds the package, and what builds and explains it.

    Raises:
        ReleaseError: it does not.
    """
    with tarfile.open(path) as archive:
        members = [each for each in archive.getmembers() if not each.isdir()]
        if others := [each.name for each in members if not each.isfile()]:
            raise ReleaseError(f"{path.name} holds {others[0]}, which is no file")
        files = {each.name: archive.extractfile(each) for each in members}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    contents = {name.partition("/")[2]: each for name, each in contents.items()}
    generated = {name for name in contents if ".egg-info/" in name} | {"PKG-INFO"}
    check_names(path, contents.keys() - generated, package | {*LEGAL, *OF_SOURCES, "MANIFEST.in"})
    check_contents(path, contents)


def check_names(path: Path, names: set[str], wanted: set[str]) -> None:
    """Compare the names in an archive with those that it should have."""
    for name in sorted(names):
        if name.startswith("/") or ".." in PurePosixPath(name).parts or UNWANTED.search(name):
            raise ReleaseError(f"{path.name} holds {name}")
    if difference := sorted(names ^ wanted):
        verb = "holds" if difference[0] in names else "lacks"
        raise ReleaseError(f"{path.name} {verb} {difference[0]}")


def check_contents(path: Path, contents: dict[str, bytes]) -> None:
    """Check that no file names the folder in which it was made."""
    places = {str(ROOT).encode(), str(Path.home()).encode() + b"/", tempfile.gettempdir().encode()}
    for name, text in contents.items():
        if named := [place.decode() for place in places if place in text and len(place) > 4]:
            raise ReleaseError(f"{name} in {path.name} names the folder {named[0]}")


def metadata_of(wheel: Path) -> Message:
    """Read a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(archive.read(name))


def oldest_versions(requirements: Sequence[str]) -> list[str]:
    """Turn the lower bounds of requirements into pins; those of extras are left out."""
    bounds = [re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", each) for each in requirements]
    return [
        f"{bound[1]}=={bound[2]}"
        for bound, text in zip(bounds, requirements, strict=True)
        if bound and "extra ==" not in text
    ]


def use(python: str, archive: Path, place: Path, options: Sequence[str] = ()) -> None:
    """Install an archive in a new environment, and run the smoke test beside it."""
    print(f"{place.name}: {archive.name} with {python}", flush=True)
    run(python, "-m", "venv", place)
    run(place / "bin/pip", "install", "-q", *options, archive)
    shutil.copy(ROOT / "scripts" / "smoke_test.py", place)
    shutil.copytree(ROOT / "tests" / "data" / "run_of_1_0", place / "run_of_1_0")
    output = run(place / "bin/python", "smoke_test.py", "run_of_1_0", folder=place)
    print(output.strip().splitlines()[-1], flush=True)


def run(*command: object, folder: Path | None = None) -> str:
    """Run a program.

    Raises:
        ReleaseError: it fails; the message ends with its output.
    """
    words = [str(each) for each in command]
    finished = subprocess.run(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if finished.returncode != 0:
        raise ReleaseError(f"{' '.join(words)} fails:\n{finished.stdout[-4000:]}")
    return finished.stdout


if __name__ == "__main__":
    try:
        main()
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.exit(f"check_release: {error}")
