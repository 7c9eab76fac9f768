from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

class FFI:
    def def_extern(self, *, error: int = ...) -> Callable[[Function], Function]: ...
    def __getattr__(self, name: str) -> Any: ...

ffi: FFI
lib: Any
