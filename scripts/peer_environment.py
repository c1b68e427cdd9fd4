"""The environment in which PyTorch is fastest on this CPU, for the benchmarks that run it as a peer.

Allocator, BLAS and what MKL takes a processor for can only be chosen before a process starts.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

OPENMP_BLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
MARK = "DSTRAIN_PEER_TUNED"
# MKL keeps its AVX-512 paths from processors of other makers, unless this says that they are Intel's.
SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def tuned_environment(threads):
    """A copy of this process's environment, tuned; MARK in it says with what."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = []
    if os.path.isdir(OPENMP_BLAS):
        append(environment, "LD_LIBRARY_PATH", OPENMP_BLAS)
        done.append("OpenBLAS with OpenMP")
    if os.path.exists(JEMALLOC):
        append(environment, "LD_PRELOAD", JEMALLOC)
        environment["MALLOC_CONF"] = "thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"
        done.append("jemalloc")
    else:
        print("peer: no jemalloc here (Debian: apt-get install libjemalloc2)", file=sys.stderr)
    if "AuthenticAMD" in pathlib.Path("/proc/cpuinfo").read_text():
        shim = build_shim()
        if shim is not None:
            append(environment, "LD_PRELOAD", shim)
            done.append("MKL's AVX-512 on AMD")
    environment[MARK] = ", ".join(done)
    return environment


def append(environment, key, path):
    environment[key] = ":".join(filter(None, (path, environment.get(key))))


def build_shim():
    """The path of the library, or None where nothing here compiles C."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"dstrain-peer-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        sys.exit(f"peer: {folder} is somebody else's; set TMPDIR to a folder of your own")
    library = folder / "libmkl_takes_amd.so"
    if not library.exists():
        part = folder / f"part-{os.getpid()}.so"
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(part)], input=SHIM,
                           text=True, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            print("peer: no C compiler here, so that MKL keeps to AVX2 on AMD", file=sys.stderr)
            return None
        part.rename(library)
    return str(library)


def find_python(asked):
    """The interpreter with the newest PyTorch, and its version; (None, None) where none has it."""
    found = (None, None)
    for python in [asked] if asked else dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        try:
            told = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
        except OSError:
            continue  # there is no such interpreter
        if told.returncode == 0:
            version = told.stdout.strip()
            if found[1] is None or number_of(version) > number_of(found[1]):
                found = (python, version)
    return found


def number_of(version):
    return [int(part) for part in version.split("+")[0].split(".")[:2]]
