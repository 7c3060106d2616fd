"""Make the virtual environment of a peer, with exactly the versions that its list pins.

python benchmarks/peers/make_environment.py rejax
python benchmarks/peers/make_environment.py skrl
python benchmarks/peers/make_environment.py stable_baselines3
python benchmarks/peers/make_environment.py jaxagents_0_2_5
"""

import argparse
import subprocess
import venv
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Install what the list of the peer says into build/peers/PEER."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=sorted(path.stem for path in HERE.glob("*.txt")))
    peer = parser.parse_args().peer
    directory = HERE.parent.parent / "build" / "peers" / peer
    venv.create(directory, with_pip=True, clear=True)
    # The lists are complete. By themselves, the packages would ask for jax's CUDA build (4 GB).
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--no-deps"]
    subprocess.run([*pip, "-r", HERE / f"{peer}.txt"], check=True)
    print(f"{peer} is ready in {directory}")


if __name__ == "__main__":
    main()
