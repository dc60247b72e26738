"""Records what the `gguf` package finds in blocks of GGUF types, for a comparison with what Penstock finds in them.

Reference: PyPI `gguf` 0.19.0 with numpy, Python 3.10 or later.
Run:  python3 -m venv venv && venv/bin/pip install gguf==0.19.0
      venv/bin/python record.py ../gguf-blocks.json
Output: the JSON object of the file with the types below added or replaced: {type, bytes, values} of 1,024 values each, base64. The
other types were recorded in the same way. Bytes are random, but for the scales (f16, of either sign), which are those
of weights, and the exponents of MXFP4.
"""
import base64, json, sys
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

VALUES = 1024
# Offsets of the f16 scales in a block.
SCALES = {'Q2_K': [80, 82], 'Q3_K': [108], 'IQ4_NL': [0], 'IQ4_XS': [0], 'MXFP4': []}

random = np.random.default_rng(20)
path = sys.argv[1]
with open(path) as file:
    recorded = json.load(file)
for name, offsets in SCALES.items():
    kind = Type[name]
    block, size = GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (VALUES // block, size), dtype=np.uint8)
    for offset in offsets:
        scales = (random.uniform(0.0005, 0.02, len(data)) * random.choice([-1, 1], len(data))).astype(np.float16)
        data[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == 'MXFP4':
        data[:, 0] = random.integers(110, 130, len(data))
    values = dequantize(data.reshape(1, -1), kind).astype(np.float32).reshape(-1)
    assert values.size == VALUES and np.isfinite(values).all()
    text = lambda array: base64.b64encode(array.tobytes()).decode()
    recorded[name] = {'type': int(kind), 'bytes': text(data), 'values': text(values)}
with open(path, 'w') as file:
    json.dump(recorded, file, indent=1)
