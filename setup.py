"""What pyproject.toml cannot say: how to compile the one part that is written in C, which is optional."""

import sys

from setuptools import Extension, setup

# Nobody looks at floating-point exceptions, but unless it is told so, gcc makes no vectors of a product that only some
# numbers need. What is not a number stays so: this is not -ffast-math.
COMMON = ["-O3", "-fno-math-errno", "-fno-trapping-math"]

# OpenMP is not linked: torch brings it, and a second one would bring threads of its own. macOS's compiler has none, so
# that the same code takes one thread there; other compilers would not even make vectors of the loops.
FLAGS = {"linux": [*COMMON, "-fopenmp"], "darwin": [*COMMON, "-fopenmp-simd"]}.get(sys.platform)

KERNELS = Extension(
    "plaudit.rl.accel._kernels", ["src/plaudit/rl/accel/_kernels.c"], extra_compile_args=FLAGS or [], optional=True
)

setup(ext_modules=[] if FLAGS is None else [KERNELS])
