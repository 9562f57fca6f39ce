"""Files to start from: a method of one's own that trains already, and its test."""

import keyword
import re
from pathlib import Path

from semifed.errors import RunError, SettingError
from semifed.writing import write_whole

HERE = Path(__file__).parent


def new_method(name: str, folder: Path | str = ".") -> list[Path]:
    """Write a method that runs and its test into a folder; nothing that is there is written over."""
    module, kind = names_of(name)
    folder = Path(folder)
    files = {folder / f"{module}.py": "method.txt", folder / f"test_{module}.py": "test.txt"}
    for path in files:
        if path.exists():
            raise RunError(f"{path}: is there already; take another name or another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, source in files.items():
            text = (HERE / source).read_text(encoding="utf-8")
            write_whole(path, text.replace("MODULE", module).replace("CLASS", kind).encode())
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}; give another --out") from None
    return list(files)


def names_of(name: str) -> tuple[str, str]:
    """The module and the class for a name such as my-method: my_method and MyMethod."""
    words = re.findall(r"[A-Z]+[0-9]*(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+", name)
    module, kind = "_".join(words).lower(), "".join(word[0].upper() + word[1:] for word in words)
    if not module.isidentifier() or keyword.iskeyword(module) or re.search(r"[^\w\- ]", name):
        raise SettingError(
            f"NAME: {name!r} is no name for a Python file; take letters, digits and -, such as my-method"
        )
    return module, kind
