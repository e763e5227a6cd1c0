"""Compiles the core with mypyc while a wheel is built, where there is a C compiler; else the wheel is plain Python.

The one rule: the Python sources are what the program is. What mypyc makes of the modules that pyproject.toml lists
stands beside them in the wheel, does the same and is only faster; without it nothing is missing.
PREFIX_ROUTER_COMPILE=0 leaves it out, =1 makes it an error that it can't be had. Editable installs stay plain Python,
so that an edited source is never hidden by what was compiled from an older one.
"""

import contextlib
import io
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_WANTED = "PREFIX_ROUTER_COMPILE"
_MYPY = ["--config-file=", "--ignore-missing-imports", "--no-error-summary"]


class CompiledCore(BuildHookInterface):
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get(_WANTED, "")
        if version == "editable" or wanted == "0":
            return
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        if shutil.which(compiler) is None:
            if wanted == "1":
                raise RuntimeError(f"{_WANTED}=1, but there is no C compiler {compiler!r} on the path; install one")
            self.app.display_warning(f"no C compiler {compiler!r}: the core stays plain Python, which is slower")
            return
        self._made = tempfile.mkdtemp(prefix="compiled-core-")
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                built = _compiled(self.config["modules"], Path(self.root), Path(self._made))
        except (Exception, SystemExit) as error:
            shutil.rmtree(self._made, ignore_errors=True)
            if wanted == "1":
                raise RuntimeError(f"the core could not be compiled: {error}\n{said.getvalue()}") from error
            self.app.display_warning(
                f"the core could not be compiled ({error}): it stays plain Python, which is slower;"
                f" {_WANTED}=1 shows why"
            )
            return
        build_data["force_include"].update(
            {str(path): str(path.relative_to(Path(self._made) / "lib")) for path in built}
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 -- hatch's
        made = getattr(self, "_made", None)
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _compiled(modules: list[str], root: Path, into: Path) -> list[Path]:
    """Shared objects of the modules, under `into`/lib."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    with contextlib.chdir(root):
        extensions = mypycify(
            [*_MYPY, *modules], opt_level="2", debug_level="0", target_dir=str(into / "c"), group_name="prefix_router"
        )
        command = Distribution({"name": "prefix-router", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(into / "lib"), str(into / "o")
        command.ensure_finalized()
        command.run()
    return sorted((into / "lib").rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))
