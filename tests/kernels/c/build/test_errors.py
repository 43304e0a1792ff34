"""An error of the compiler is one of its own kind, which the backend translates with the fix."""

import pytest

from eqlayers.core.backends.registry import as_backend_error
from eqlayers.errors import BackendError
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.build.errors import CompilerError


def test_a_missing_compiler_is_an_error_that_no_handler_of_files_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is left out, which hides an OSError; a missing compiler must not be hidden."""
    monkeypatch.setenv("CC", "nonexistent-compiler")
    monkeypatch.setattr(compiler, "_loaded", {})
    compiler._tried.clear()
    try:
        message = r"there is no such program; .*\. Or pass backend='torch'\."
        with pytest.raises(BackendError, match=message) as caught, as_backend_error():
            compiler.load("", "kernel")
    finally:
        compiler._tried.clear()
    cause = caught.value.__cause__
    assert type(cause) is CompilerError
    assert isinstance(cause, RuntimeError)
    assert not isinstance(cause, (OSError, ValueError))
    with pytest.raises(ValueError, match="expected an identifier"), as_backend_error():
        compiler.load("", "not a name")
