"""Choose which kernels to build; everything else is in pyproject.toml.

`FEDARENA_KERNEL_BUILDS` is "best" (the fastest build of each kernel that this processor runs), "native" (all that it
runs) or "all". By default a clone builds "native", and every other source tree, such as a source distribution, "all":
there the package may be meant for other machines.
"""

import os
import platform
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

# The flags of /proc/cpuinfo that each build needs. The builds of a kernel are listed from the fastest to the slowest.
KERNELS = {
    "fedarena.models": {
        "_native_avx512": {"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"},
        "_native_avx2": {"avx2", "fma"},
    },
    "fedarena.trees": {"_native": set()},
    "fedarena.vertical.crypto": {"_paillier_ifma": {"avx512f", "avx512ifma"}, "_paillier_portable": set()},
}
CHOICES = ("best", "native", "all")


class KernelBuild(build_ext):
    """Build the kernels that were chosen, as many at once as there are processors."""

    def finalize_options(self):
        super().finalize_options()
        wanted = chosen_builds()
        self.extensions = [extension for extension in self.extensions if extension.name in wanted]
        self.parallel = self.parallel or os.cpu_count()


def chosen_builds():
    """Return the names of the extensions to build."""
    default = "native" if (Path(__file__).parent / ".git").exists() else "all"
    choice = os.environ.get("FEDARENA_KERNEL_BUILDS") or default
    if choice not in CHOICES:
        raise SystemExit(f"FEDARENA_KERNEL_BUILDS is '{choice}': use one of {', '.join(CHOICES)}")
    flags = processor_flags() if choice != "all" else None
    names = []
    for package, builds in KERNELS.items():
        runnable = [name for name, needed in builds.items() if flags is None or needed <= flags]
        names += [f"{package}.{name}" for name in (runnable[:1] if choice == "best" else runnable)]
    return names


def processor_flags():
    """Return the instruction sets of this processor; None where the system does not list them."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next(({*line.partition(":")[2].split()} for line in lines if line.startswith("flags")), None)


setup(cmdclass={"build_ext": KernelBuild})
