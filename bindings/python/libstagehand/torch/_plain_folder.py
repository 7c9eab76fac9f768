"""A folder that shows the packed files of another folder as plain files."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable
from types import TracebackType

from ._headers import File
from ._plain_files import PlainFile


class PlainFolder:
    """It has links to everything that the folder has, and plain files in the place of packed ones. The links exist
    until the end of the `with`, and the files as long as somebody has mapped them or has this object.
    """

    def __init__(self, folder: str | os.PathLike[str], packed: Iterable[File]) -> None:
        whole = pathlib.Path(folder).absolute()
        self.files: list[PlainFile] = []
        self._place = pathlib.Path(tempfile.mkdtemp(prefix="stagehand-"))
        # Libraries keep what they make of a folder's code by the folder's name.
        self.path = self._place / (whole.name or "model")
        try:
            self.path.mkdir()
            self._fill(whole, self.path, {pathlib.Path(file.path).absolute(): file for file in packed})
        except BaseException:
            self._remove()
            raise

    def _fill(self, folder: pathlib.Path, to: pathlib.Path, packed: dict[pathlib.Path, File]) -> None:
        for one in folder.iterdir():
            link = to / one.name
            if one in packed:
                self.files.append(PlainFile(packed[one]))
                link.symlink_to(f"/proc/{os.getpid()}/fd/{self.files[-1].file}")
            elif any(one in file.parents for file in packed):
                link.mkdir()
                self._fill(one, link, packed)
            else:
                link.symlink_to(one)

    def __enter__(self) -> PlainFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)  # the links, not what they lead to
