"""Images of others: what TensorFlow's decode_image takes is decoded to the same; what it does not is named."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dlio_bench.benchmarks.imagenet import images
from dlio_bench.benchmarks.imagenet.decode import decode
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.errors import DataError
from dlio_bench.harness.commands.generation import indexing, verification
from dlio_bench.harness.commands.generation.options import IndexOptions, VerifyOptions

pytestmark = pytest.mark.slow

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((80, 60))
WIDE = Image.fromarray((np.arange(60 * 80).reshape(60, 80) * 13).astype(np.uint16))


def stored(kind: str, picture: Any = PICTURE, **how: Any) -> bytes:
    content = io.BytesIO()
    picture.save(content, kind, **how)
    return content.getvalue()


def ycck(content: bytes) -> bytes:
    """The same inks said to be turned into luminance and colour."""
    place = content.index(b"Adobe") + 11
    return content[:place] + b"\2" + content[place + 1 :]


def unmarked(content: bytes) -> bytes:
    """Without the marker that says that inks are inverted."""
    place = content.index(b"Adobe") - 4
    return content[:place] + content[place + 2 + int.from_bytes(content[place + 2 : place + 4], "big") :]


INKS = stored("JPEG", PICTURE.convert("CMYK"))
TAKEN = {
    "JPEG": stored("JPEG"),
    "progressive": stored("JPEG", progressive=True),
    "grey": stored("JPEG", PICTURE.convert("L")),
    "CMYK": INKS,
    "YCCK": ycck(INKS),
    "CMYK, not inverted": unmarked(INKS),
    "PNG": stored("PNG"),
    "PNG with alpha": stored("PNG", Image.merge("RGBA", [*PICTURE.split(), PICTURE.convert("L")])),
    "PNG of a palette": stored("PNG", PICTURE.quantize(16), transparency=b"\0\x80"),
    "PNG of 16 bits": stored("PNG", WIDE),
    "GIF": stored("GIF", PICTURE.quantize(16), save_all=True, append_images=[PICTURE.rotate(90).quantize(16)]),
    "BMP": stored("BMP"),
}
ROUNDING = 6  # of 255: one JPEG decoder rounds where the other dithers


def test_what_decode_image_takes_is_decoded_to_the_same() -> None:
    tf = pytest.importorskip("tensorflow")
    for name, content in TAKEN.items():
        expected = tf.io.decode_image(content, channels=3, expand_animations=False).numpy().astype(int)
        found = np.asarray(images.rgb(memoryview(content))).astype(int)
        assert np.abs(found - expected).max() <= ROUNDING, name
        assert images.fault(content) is None, name


def bomb(width: int, height: int) -> bytes:
    """A JPEG that says to be of this size; its bytes are few."""
    content = bytearray(stored("JPEG"))
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(content)


REFUSED = {
    "0 bytes": (b"", "no bytes"),
    "text": (b"<html>not found</html>", "no JPEG, PNG, GIF or BMP"),
    "WebP": (stored("WEBP"), "no JPEG, PNG, GIF or BMP"),
    "cut": (TAKEN["JPEG"][:-30], "truncated"),
    "cut PNG": (TAKEN["PNG"][:-300], "no JPEG, PNG, GIF or BMP"),
    "large": (bomb(20_000, 5_000), "pixels"),
    "larger": (bomb(65_000, 65_000), "pixels"),
}


def test_what_nobody_decodes_is_told_in_words() -> None:
    for name, (content, says) in REFUSED.items():
        reason = images.fault(content)
        assert reason is not None, name
        assert says in reason, name
        with pytest.raises(DataError, match=says):
            images.rgb(content)


def test_index_and_verify_name_images_and_delivery_decodes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "train" / "n01"
    folder.mkdir(parents=True)
    for number, content in enumerate(TAKEN.values()):
        (folder / f"{number}.JPEG").write_bytes(content)
    asked = IndexOptions(tmp_path, "imagenet", "raw")
    assert indexing.index_data(asked) == 0
    dataset = open_dataset(tmp_path)
    made = decode(dataset)
    for number in range(dataset.samples):
        out = memoryview(bytearray(made.sample_bytes))
        made.apply(number, [memoryview(dataset.path(number).read_bytes())], out)
    for number, (content, _) in enumerate(REFUSED.values()):
        (folder / f"bad{number}.JPEG").write_bytes(content)
    capsys.readouterr()
    assert indexing.index_data(asked) == 5
    told = capsys.readouterr().out
    assert all(f"bad{number}.JPEG" in told for number in range(len(REFUSED)))
    assert "--skip-bad" in told
    assert "elete" not in told
    assert indexing.index_data(IndexOptions(tmp_path, "imagenet", "raw", skip_bad=True)) == 0
    assert "bad0.JPEG" in capsys.readouterr().out
    assert open_dataset(tmp_path).samples == len(TAKEN)
    assert verification.verify(VerifyOptions(folder=tmp_path, workers=1)) == 0


def test_verify_names_an_image_that_was_indexed_and_cannot_be_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.JPEG").write_bytes(REFUSED["text"][0])
    with monkeypatch.context() as blind:
        blind.setattr(indexing, "examine", without_looking)
        assert indexing.index_data(IndexOptions(tmp_path, "imagenet", "raw")) == 0
    capsys.readouterr()
    assert verification.verify(VerifyOptions(folder=tmp_path, workers=1)) == 5
    told = capsys.readouterr().out
    assert "1.JPEG: sample 0 cannot be decoded" in told


EXAMINE = indexing.examine


def without_looking(*asked: Any, fault: object) -> Any:
    return EXAMINE(*asked)
