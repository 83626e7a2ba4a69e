"""Files of npm packages: only those that were pinned are written, and only where they differ."""

import hashlib
import io
import tarfile
from base64 import b64encode

import pytest

from development import vendoring


def tarball(**files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, body in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return packed.getvalue()


@pytest.fixture
def static(tmp_path):
    """A folder for which one file of one package is listed; the registry answers with its tarball."""
    sent = tarball(code=b"let a = 1;")
    integrity = f"sha512-{b64encode(hashlib.sha512(sent).digest()).decode()}"
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "vendored.toml").write_text(
        f'[[package]]\nname = "@of/it"\nversion = "1.2.3"\nintegrity = "{integrity}"\nlicence = "MIT"\n'
        'why = "a test"\n[package.files]\n"js/of-it.js" = "code"\n'
    )
    answers = {"https://registry.npmjs.org/@of/it/-/it-1.2.3.tgz": sent}
    return tmp_path, answers


def test_a_missing_file_is_written_and_a_changed_one_is_named(static, capsys):
    folder, answers = static
    assert vendoring.vendor(folder, check=True, fetch=answers.__getitem__) == 1
    assert not (folder / "js").exists()
    assert vendoring.vendor(folder, fetch=answers.__getitem__) == 0
    assert (folder / "js" / "of-it.js").read_bytes() == b"let a = 1;"
    assert vendoring.vendor(folder, check=True, fetch=answers.__getitem__) == 0
    (folder / "js" / "of-it.js").write_bytes(b"let a = 2;")
    capsys.readouterr()
    assert vendoring.vendor(folder, check=True, fetch=answers.__getitem__) == 1
    assert capsys.readouterr().out == "js/of-it.js differs.\n"


def test_another_tarball_than_the_pinned_one_writes_nothing(static, capsys):
    folder, answers = static
    for address in answers:
        answers[address] = tarball(code=b"steal();")
    assert vendoring.vendor(folder, fetch=answers.__getitem__) == 2
    assert not (folder / "js").exists()
    assert "not sha512-" in capsys.readouterr().err


def test_a_file_that_the_package_lacks_is_an_error():
    sent = tarball(other=b"")
    integrity = f"sha512-{b64encode(hashlib.sha512(sent).digest()).decode()}"
    package = vendoring.VendoredPackage("a", "1.0.0", integrity, "MIT", "", {"js/a.js": "code"})
    with pytest.raises(vendoring.IntegrityError, match="no file code"):
        list(vendoring.contents(package, sent))
