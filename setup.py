"""What pyproject.toml cannot say: how to compile the one part that is written in C, which is optional."""

import sys

from setuptools import Extension, setup

# Without OpenMP, as on macOS, the same code takes one thread.
FLAGS = {"linux": (["-O3", "-fopenmp"], ["-fopenmp"]), "darwin": (["-O3"], []), "win32": (["/O2"], [])}
compile_args, link_args = FLAGS.get(sys.platform, ([], []))

setup(
    ext_modules=[
        Extension(
            "plaudit.rl._kernels",
            ["src/plaudit/rl/_kernels.c"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            optional=True,
        )
    ]
)
