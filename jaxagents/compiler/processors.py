"""The number of processors that XLA sees. Does not import jax, to be called before jax is."""

import os


def give_xla_two_threads() -> None:
    """Let XLA start a thread per processor, or NPROC threads, but at least two.

    On a CPU, a program that calls the host back occupies one of XLA's threads until the host
    returns, while another copies the arguments. With a single thread both wait forever: see
    https://github.com/jax-ml/jax/issues/24255. XLA reads NPROC when jax first computes something;
    without it, it would count the processors then, which may be fewer than now.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    n_processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    asked = os.environ.get("NPROC", "").strip()
    n_threads = int(asked) if asked.isdecimal() else n_processors
    os.environ["NPROC"] = str(max(2, n_threads))
