"""
Makes reference.json: what transformers computes for tiny models of many shapes, whose weights are a formula, so that only their logits
have to be kept. Not a part of the tests; needs torch, transformers and safetensors:

    python make_reference.py > reference.json

Weights of a tensor, and prompts, are `noise(name, count)`, values in [-1, 1): a matrix is noise * 2.2 / sqrt(its inputs), an embedding
noise * 0.8, a vector noise * 0.2, a norm that plus 1 (plus nothing where the family adds 1 itself).
"""
import base64
import json
import random
import struct
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ARCHITECTURES = [
    'llama', 'mistral', 'ministral', 'mixtral', 'qwen2', 'qwen3', 'qwen3_moe', 'phi3', 'gemma2', 'gemma3_text', 'olmo2',
    'granite', 'smollm3',
]
SEEDS = 4
LENGTHS = (33, 170)


def noise(name, count):
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    with np.errstate(over='ignore'):
        state = (np.arange(count, dtype=np.uint32) + np.uint32(seed)) * np.uint32(747796405) + np.uint32(2891336453)
        word = ((state >> ((state >> np.uint32(28)) + np.uint32(4))) ^ state) * np.uint32(277803737)
        word = (word >> np.uint32(22)) ^ word
    return word / 2147483648.0 - 1.0


def weights(name, shape, adds_one):
    values = noise(name, int(np.prod(shape)))
    if 'norm' in name:
        values = values * 0.2 + (0 if adds_one else 1)
    elif len(shape) == 1:
        values = values * 0.2
    elif 'embed' in name:
        values = values * 0.8
    else:
        values = values * (2.2 / np.sqrt(shape[-1]))
    return values.astype(np.float32).reshape(shape)


def header(path):
    with open(path, 'rb') as file:
        (size,) = struct.unpack('<Q', file.read(8))
        names = json.loads(file.read(size))
    names.pop('__metadata__', None)
    return {name: entry['shape'] for name, entry in sorted(names.items())}


def scaling(r, kind, rotated):
    if kind == 'linear':
        return {'rope_type': 'linear', 'factor': r.choice([2.0, 4.0])}
    if kind == 'llama3':
        return {
            'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': r.choice([1.0, 2.0]), 'high_freq_factor': 4.0,
            'original_max_position_embeddings': 64,
        }
    if kind == 'yarn':
        yarn = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 64}
        if r.random() < 0.5:
            yarn.update(beta_fast=r.choice([16.0, 32.0]), beta_slow=r.choice([1.0, 2.0]))
        more = r.random()
        if more < 0.3:
            yarn['attention_factor'] = r.choice([1.1, 0.9])
        elif more < 0.6:
            yarn.update(mscale=1.0, mscale_all_dim=r.choice([0.8, 1.0]))
        if r.random() < 0.3:
            yarn['truncate'] = False
        return yarn
    if kind == 'longrope':
        half = rotated // 2
        return {
            'rope_type': 'longrope', 'long_factor': [1 + 0.7 * i for i in range(half)],
            'short_factor': [1 + 0.05 * i for i in range(half)],
        }
    return None


def configuration(architecture, r):
    """As checkpoints of before transformers 5 have it."""
    heads = r.choice([2, 4, 6])
    head_dim = r.choice([16, 24, 32])
    layers = r.choice([2, 3])
    windows = lambda: [r.choice(['sliding_attention', 'full_attention']) for _ in range(layers)]
    maybe = lambda share: r.random() < share
    config = dict(
        hidden_size=r.choice([48, 64, 80]) // heads * heads, intermediate_size=r.choice([72, 100, 128]),
        num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=r.choice([n for n in (1, 2, 3, 6) if heads % n == 0]),
        vocab_size=r.choice([96, 131]), max_position_embeddings=512, rms_norm_eps=r.choice([1e-5, 1e-6]),
        rope_theta=r.choice([10000.0, 500000.0]), tie_word_embeddings=maybe(0.5), hidden_act='silu',
        bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )
    kind = r.choice([None, 'linear', 'yarn', 'llama3'])
    has_head_dim = True
    if architecture == 'llama':
        config.update(attention_bias=maybe(0.3), mlp_bias=maybe(0.3))
    elif architecture == 'mistral':
        config.update(sliding_window=r.choice([None, 20, 48]))
    elif architecture == 'ministral':
        config.update(sliding_window=r.choice([20, 48]), layer_types=windows())
    elif architecture == 'mixtral':
        config.update(num_local_experts=r.choice([4, 8]), num_experts_per_tok=r.choice([1, 2, 3]), sliding_window=r.choice([None, 40]))
    elif architecture in ('qwen2', 'qwen3'):
        has_head_dim = architecture == 'qwen3'
        is_windowed = maybe(0.5)
        config.update(use_sliding_window=is_windowed, sliding_window=30 if is_windowed else None, max_window_layers=r.choice([0, 1, 2]))
        if has_head_dim:
            config.update(attention_bias=maybe(0.3))
    elif architecture == 'qwen3_moe':
        config.update(
            attention_bias=maybe(0.3), num_experts=r.choice([4, 8, 12]), num_experts_per_tok=r.choice([1, 2, 4]),
            moe_intermediate_size=r.choice([32, 40, 72]), norm_topk_prob=maybe(0.5), decoder_sparse_step=r.choice([1, 1, 2]),
            mlp_only_layers=r.choice([[], [0], [1]]),
        )
    elif architecture == 'phi3':
        has_head_dim = False
        kind = r.choice([None, 'longrope'])
        config.update(sliding_window=r.choice([None, 40]), partial_rotary_factor=r.choice([1.0, 0.5]))
        if kind:
            config.update(original_max_position_embeddings=32)
    elif architecture == 'gemma2':
        kind = None
        config.update(
            query_pre_attn_scalar=r.choice([head_dim, 48]), sliding_window=r.choice([20, 36]), tie_word_embeddings=True,
            attn_logit_softcapping=r.choice([None, 5.0, 50.0]), final_logit_softcapping=r.choice([None, 3.0, 30.0]),
        )
    elif architecture == 'gemma3_text':
        kind = r.choice([None, 'linear'])
        config.update(
            query_pre_attn_scalar=r.choice([head_dim, 48]), sliding_window=r.choice([20, 36]), tie_word_embeddings=True,
            rope_local_base_freq=10000.0, num_hidden_layers=r.choice([3, 7]),
        )
    elif architecture == 'olmo2':
        has_head_dim = False
        config.update(attention_bias=False)
    elif architecture == 'granite':
        has_head_dim = False
        config.update(
            attention_bias=maybe(0.3), mlp_bias=maybe(0.3), embedding_multiplier=r.choice([1.0, 12.0]),
            logits_scaling=r.choice([1.0, 8.0]), residual_multiplier=r.choice([1.0, 0.22]), attention_multiplier=r.choice([0.25, 0.1]),
        )
    elif architecture == 'smollm3':
        has_head_dim = False
        config.update(no_rope_layers=[r.choice([0, 1]) for _ in range(layers)], attention_bias=maybe(0.3), use_sliding_window=False)
        if maybe(0.5):
            config.update(use_sliding_window=True, sliding_window=40, layer_types=windows())
    if has_head_dim:
        config['head_dim'] = head_dim
    else:
        config['hidden_size'] = heads * head_dim
    if 'gemma' in architecture:
        del config['hidden_act']
        config['hidden_activation'] = 'gelu_pytorch_tanh'
    if any('experts' in key for key in config):
        # The wasm device wants outputs of experts in eights.
        config['hidden_size'] = 48
    rotated = int(head_dim * config.get('partial_rotary_factor', 1))
    config['rope_scaling'] = scaling(r, kind, rotated)
    return config


def model(architecture, seed):
    r = random.Random(f'{architecture} {seed}')
    old = configuration(architecture, r)
    name = f'{architecture}-{seed}'
    adds_one = architecture.startswith('gemma')
    with tempfile.TemporaryDirectory() as folder:
        config = AutoConfig.for_model(architecture, **json.loads(json.dumps(old)))
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        shapes = header(f'{folder}/model.safetensors')
        made = {tensor: weights(f'{name} {tensor}', shape, adds_one) for tensor, shape in shapes.items()}
        save_file(made, f'{folder}/model.safetensors', metadata={'format': 'pt'})
        reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation='eager', dtype=torch.float32).eval()
        new = json.load(open(f'{folder}/config.json'))
    cases = []
    for length in LENGTHS:
        prompt = [int((value + 1) / 2 * old['vocab_size']) for value in noise(f'{name} prompt {length}', length)]
        with torch.no_grad():
            logits = reference(torch.tensor([prompt]), use_cache=False).logits[0, -1].float().numpy()
        cases.append({'length': length, 'logits': base64.b64encode(logits.astype('<f4').tobytes()).decode()})
    # Every other one as transformers 5 writes it, with its rope_parameters and its names.
    own = {**old, 'model_type': architecture, 'torch_dtype': 'float32'} if seed % 2 == 0 else new
    return name, {'config': own, 'addsOne': adds_one, 'tensors': shapes, 'cases': cases}


models = dict(model(architecture, seed) for architecture in ARCHITECTURES for seed in range(SEEDS))
json.dump({'reference': f'transformers {transformers.__version__}, float32, eager attention', 'models': models}, sys.stdout, separators=(',', ':'))
