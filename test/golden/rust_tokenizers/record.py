"""Records what the Rust tokenizers have of made tokenizers and texts, for a comparison with what Penstock has of them.

Reference: PyPI `tokenizers` 0.23.3 (another version is refused), Python 3.10 or later.
Run:  python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
      venv/bin/python record.py recordings.json && gzip -9 -n recordings.json
Output: one JSON object {version, texts, models, tokenizers: [{name, json, texts, ids, whole, plain, skipped, singles, lists, lists_text, lists_skipped, long}]};
`json.model` is an index into models, `texts` are indices into texts, null in `whole` is what `ids` has with `around` before and after it, 0 in `plain` is the text, 0 in `skipped` is what `plain` has; null elsewhere: the Rust package fails.
The vocabularies are trained here, on the text below; the recording holds each tokenizer.json that was made, so that nobody needs to train again.
"""
import hashlib, json, random, sys
import tokenizers
from tokenizers import Tokenizer, models, trainers, pre_tokenizers, normalizers

assert tokenizers.__version__ == '0.23.3', tokenizers.__version__
SPACE = '\u2581'

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the cat sat on the mat. It's the end of the world as we know it!",
    "the world the world the cat the cat hello hello hello world Hello World HELLO they're we've I'll don't isn't you'd I'm",
    "for (let i = 0; i < n; i++) {\n    x[i] += 3.14e-10; // ok\n}\n\n\n", "  a  b   c    d     e\n\n\tf\t\tg  ",
    "1 12 123 1234 12345 2024 2025 100 1000 10000 3.14", "déjà vu café naïve über straße Ångström façade élève",
    "привет мир это тест мир мир привет", "你好世界 你好 世界 世界你好", "this is a test of the tokenizer, this is only a test.",
    "do not do not do not . , ! ? ' n't 's 've 're", "concatenate cats dogma doghouse underdog category",
    "snake_case camelCase PascalCase kebab-case", "aa aaa aaaa aaaaa bb bbb ab aab abb aabb baab",
] * 4
# Pairs that a pre-tokenizer keeps apart, so that it shows where one does not.
EDGES = [c * 2 for a in ['½²', 'x²', ' ½', 'Ⅷ', ' ٣', 'a٣', '一1', '①②', '\ufeff', ' \ufeff', '\ufeffh', '\u0085', 'a\u0085', ' \u0085', '\u0085 ', '\u00a0a', ' \u00a0', 'a.', '.a', '..', ' .', '. ', 'é_', '_a', 'a1', '1a', '\n ', ' \n', '\ta', '  a', 'a  ', 'aa', 'l ', ' l', "'s", "'S", '\u0301x', 'é.', '\u200d\u200c', '🙂', ' 🙂', '\u180e', '\u001c', '”', '“q'] for c in [a, a + a]] * 8

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "hello", " hello", "  hello", "hello ", "hello  ", "hello world", "hello  world", "hello   world  ",
    "Hello, world! It's 2024. Isn't it?", "the\nworld\n\n\nthe\tcat\r\nx", "  \n  the cat\n  ", "a . b , c ! d ? e ' f n't 's do not", "x = . 5 != 6 's",
    "1 12 123 1234 12345 1234567", "a1b22c333", "½ cup, 4 ½ x² ³ Ⅷ ⅷ ٣٤ 一二 ① ⑳ ㊀ 〇 ¼", "1½2 x²y ٣a١ Ⅻ Ⅰ১২ 𝟙𝟚 🄁 ෧",
    "café naïve déjà vu Ångström Å straße", "cafe\u0301 nai\u0308ve A\u030a \u0301x e\u0301\u0302 \u0915\u093f \u0e01\u0e33", "ΟΔΟΣ ΣΑΣ Σ ΑΣ. İstanbul ıI DŽ ẞ K",
    "你好，世界。你好 世界", "𠀀𠮷 \U0002b820\U0002b91f\U0002b920 豈 㐀 ㇀", "привет мир", "こんにちは ﾊﾟ ㌔ ﬁ ﷺ ℃ …", "한국어 각 \u1100\u1161\u11a8",
    "🙂 👩‍👩‍👧 🤩🥰 👍🏽 🇩🇪 🫠", "\ufeffhello \ufeff world\ufeff", "a\u00a0b \u00a0 c\u2003d\u3000e\u2028f\u2029g\u202fh\u205fi\u1680j\u180ek", "a\u0085b \u0085 c\u0085\u0085 ", "x\u0000y\u0001z\u007f \u001c\u001d \u000b\u000c \u0090",
    "\u200bzero\u200c\u200dwidth\u2060\u00ad \ufffd \ue000 \U000e0041 \U0010ffff \u0378", "¿qué? ¡sí! «oui» “q” ‘s’ — – … ‰ § ¶ † ‡ € ¢ £ ¥ ₿ + < = > ^ ` | ~ $ ° ©",
    "\u2581 \u2581\u2581 a\u2581b \u2581hello", "snake_case __init__ a-b (c) [d] {e} <f>", "supercalifragilisticexpialidocious" * 4, "a" * 101, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbb aab abab",
    "http://x.y/z?a=b&c=d#e <|im_start|> <unk> [UNK] <pad> [MASK]", "don't I'LL we'Ve 'S 'tis rock'n'roll  's", "\u00e9\u00c9\u0130 \u1e9e", "zz你zz 好 q☃☃ ☃q☃ ☃ ☃", "a\r\nb\rc\n\rd", "  leading and trailing   ", "hello\u0301world _a_ 9_9 a९b",
]
NEIGHBOURS = ['', 'a', 'Z', '9', '_', 'é', '你', '.', ' ', '  ', '\n', '\t ', '\u0301', '\u200d', '\u200c', '½', '²', 'Ⅷ', '٣', '\ufeff', '\u0085', '\u00a0', '(', '-', '𝒳', '🙂', '☃', 'ª', '\u203f', 'ⓐ', '\u0345']

def added(content, id, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False):
    return dict(id=id, content=content, single_word=single_word, lstrip=lstrip, rstrip=rstrip, normalized=normalized, special=special)

S = lambda content, **k: dict(content=content, special=True, **k)
PLAIN = [S('<s>'), S('</s>'), S('<unk>')]
FLAGS = PLAIN + [
    dict(content='cat', single_word=True), dict(content='dog', single_word=True, normalized=True), S('<mask>', lstrip=True), S('<r>', rstrip=True), S('<lr>', lstrip=True, rstrip=True),
    dict(content='<n>', normalized=True), dict(content='Hello', normalized=True), dict(content='é', normalized=False), S('[X]', single_word=True, lstrip=True, rstrip=True),
    dict(content='\n\n', normalized=False), dict(content='   ', normalized=True), dict(content='<nl>', normalized=True, lstrip=True, rstrip=True), S('<ns>', normalized=True), dict(content='World', single_word=True, normalized=True, rstrip=True),
    dict(content='cats', normalized=False, single_word=True), dict(content='b<', normalized=False), dict(content='<b', normalized=True), dict(content='ñ', single_word=True, normalized=False), S('Ünï', normalized=True), dict(content='好', single_word=True),
]

# A token that a normalizer empties makes the Rust package look for the empty text without an end.
SOLID = [t for t in FLAGS if t['content'].strip(' ')]

def flagged_texts(tokens):
    texts = []
    for t in [t['content'] for t in tokens]:
        texts.append('|'.join(n + t + n for n in NEIGHBOURS))
        texts += [t, ' ' + t, t + ' ', t + t, f'hello{t}world', f'hello {t} world', f' {t} ', f'the {t}the', f'{t}hello', f'hello{t}']
    texts += ["the cat sat on the cats, concatenate category cat's cat_ cat9 _cat Cat catcat cat cat", "dog DOG doghouse underdog dog_dog dog-dog dog\u0301 dog\u200ddog", '<b<b< b<b <bb<', '<r>  \n\n  x <lr> \n\n <mask>   <r>   <mask>', 'Hello HELLO hello Othello World worldly WORLD  x',
              '<s><s> </s>\n</s>hello', '<s>hello', 'hello</s>world', '<s> hello</s>  world', '\ufeff<mask>\ufeff<r>\ufeffx \u0085<mask>\u0085<r>\u0085x', 'ñandú ñ señor', 'ÜNÏ ünï Ünï Uni\u0308 U\u0308n\u00ef', 'x<ns>y<n>z<nl>  w  <nl>v']
    return list(dict.fromkeys(texts))

def train(model, trainer, pre=None, norm=None, corpus=CORPUS):
    t = Tokenizer(model)
    if pre: t.pre_tokenizer = pre
    if norm: t.normalizer = norm
    t.train_from_iterator(corpus, trainer)
    return json.loads(t.to_str())['model']

quiet = dict(show_progress=False)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE = train(models.BPE(), trainers.BpeTrainer(vocab_size=256 + 130, initial_alphabet=alphabet, **quiet), pre_tokenizers.ByteLevel(add_prefix_space=False))
BYTE_FREE = train(models.BPE(), trainers.BpeTrainer(vocab_size=256 + 300, initial_alphabet=alphabet, max_token_length=8, **quiet), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), None, CORPUS + EDGES)
ascii_alphabet = [chr(c) for c in range(33, 127)]
spaces = normalizers.Replace(' ', SPACE)
SP = train(models.BPE(unk_token='<unk>'), trainers.BpeTrainer(vocab_size=300, initial_alphabet=ascii_alphabet, limit_alphabet=110, special_tokens=['<unk>', '<s>', '</s>'], **quiet), pre_tokenizers.Metaspace(prepend_scheme='always', split=True))
SP_FREE = train(models.BPE(unk_token='<unk>'), trainers.BpeTrainer(vocab_size=320, initial_alphabet=ascii_alphabet, limit_alphabet=110, special_tokens=['<unk>', '<s>', '</s>'], max_token_length=7, **quiet), None, spaces)
UNI = train(models.Unigram(), trainers.UnigramTrainer(vocab_size=220, initial_alphabet=ascii_alphabet + [SPACE], special_tokens=['<unk>', '<s>', '</s>'], unk_token='<unk>', max_piece_length=8, **quiet), pre_tokenizers.Metaspace(prepend_scheme='always', split=True))
WP = train(models.WordPiece(unk_token='[UNK]'), trainers.WordPieceTrainer(vocab_size=260, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'], limit_alphabet=100, **quiet), pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
WL = train(models.WordLevel(unk_token='<unk>'), trainers.WordLevelTrainer(vocab_size=120, special_tokens=['<unk>', '<s>', '</s>'], **quiet), pre_tokenizers.Whitespace())
WORD = train(models.BPE(unk_token='<unk>'), trainers.BpeTrainer(vocab_size=260, special_tokens=['<unk>', '<s>', '</s>'], end_of_word_suffix='</w>', **quiet), pre_tokenizers.WhitespaceSplit(), normalizers.Lowercase())
PREFIX = train(models.BPE(unk_token='<unk>', continuing_subword_prefix='##'), trainers.BpeTrainer(vocab_size=300, special_tokens=['<unk>', '<s>', '</s>'], continuing_subword_prefix='##', **quiet), pre_tokenizers.Whitespace())
BYTES = [f'<0x{b:02X}>' for b in range(256)]

def bpe(base, **more):
    return {**base, **more}

def with_bytes(base, some=BYTES, **more):
    vocab = dict(base['vocab'])
    for b in some: vocab[b] = len(vocab)
    return {**base, 'vocab': vocab, 'byte_fallback': True, **more}

def unigram(pieces=(), some=None, **more):
    vocab = [list(v) for v in UNI['vocab']] + [list(p) for p in pieces] + ([[b, -20.0] for b in some] if some else [])
    return {**UNI, 'vocab': vocab, **more}

CROSS = [(SPACE * 2, -5.0), ('e' + SPACE, -4.0), (SPACE + 'the' + SPACE, -3.0), ('lo' + SPACE + 'wor', -4.0), ('好', -9.0)]

seq = lambda *parts: dict(type='Sequence', pretokenizers=list(parts))
nseq = lambda *parts: dict(type='Sequence', normalizers=list(parts))
dseq = lambda *parts: dict(type='Sequence', decoders=list(parts))
BL = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=True)
BLN = {**BL, 'use_regex': False}
def split(pattern, behavior='Isolated', invert=False, kind='Regex'): return dict(type='Split', pattern={kind: pattern}, behavior=behavior, invert=invert)
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace('{1,3}', '')
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
def meta(scheme='always', split=True, **k): return dict(type='Metaspace', replacement=SPACE, prepend_scheme=scheme, split=split, **k)
def replace(a, b, kind='String'): return dict(type='Replace', pattern={kind: a}, content=b)
N = lambda kind, **k: dict(type=kind, **k)
LLAMA2_NORM = nseq(N('Prepend', prepend=SPACE), replace(' ', SPACE))
SP_DEC = dseq(replace(SPACE, ' '), N('ByteFallback'), N('Fuse'), N('Strip', content=' ', start=1, stop=0))
GEMMA_DEC = dseq(replace(SPACE, ' '), N('ByteFallback'), N('Fuse'))
BERT_NORM = lambda **k: N('BertNormalizer', **{**dict(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True), **k})
def template(*before_after):
    before, after = before_after
    t = lambda s: dict(SpecialToken=dict(id=s, type_id=0))
    a = [dict(Sequence=dict(id='A', type_id=0))]
    return lambda ids: dict(type='TemplateProcessing', single=[*map(t, before), *a, *map(t, after)], pair=[*a, dict(Sequence=dict(id='B', type_id=1))], special_tokens={s: dict(id=s, ids=[ids[s]], tokens=[s]) for s in {*before, *after}})
BOS = template(['<s>'], [])
BOTH = template(['<s>'], ['</s>'])

made = []
def make(name, model, norm=None, pre=None, post=None, dec=None, tokens=PLAIN, texts=None):
    vocab = model['vocab']
    ids = {v[0]: i for i, v in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    size = len(vocab)
    out = []
    for t in tokens:
        if t['content'] not in ids:
            ids[t['content']] = size
            size += 1
        out.append(added(id=ids[t['content']], **t))
    j = dict(version='1.0', truncation=None, padding=None, added_tokens=sorted(out, key=lambda t: t['id']), normalizer=norm, pre_tokenizer=pre, post_processor=post(ids) if callable(post) else post, decoder=dec, model=model)
    made.append((name, j, (texts or []) + (flagged_texts(tokens) if tokens is not PLAIN else flagged_texts(PLAIN)[-14:])))

# Byte-level BPE
make('gpt2', BYTE, None, BL, BL, BL)
make('gpt2 prefix space', BYTE_FREE, None, {**BL, 'add_prefix_space': True}, BL, BL)
make('gpt2 no regex', BYTE_FREE, None, BLN, BL, BL)
make('gpt2 flags', BYTE_FREE, None, BL, BL, BL, FLAGS)
make('gpt2 nfc flags', BYTE_FREE, N('NFC'), BL, BL, BL, FLAGS)
make('llama3', bpe(BYTE_FREE, ignore_merges=True), None, seq(split(LLAMA3), BLN), lambda ids: dict(type='Sequence', processors=[BL, BOS(ids)]), BL)
make('llama3 flags', bpe(BYTE_FREE, ignore_merges=True), None, seq(split(LLAMA3), BLN), lambda ids: dict(type='Sequence', processors=[BL, BOTH(ids)]), BL, FLAGS)
make('qwen nfc', BYTE_FREE, N('NFC'), seq(split(QWEN), BLN), BL, BL)
make('gpt4o', BYTE_FREE, None, seq(split(GPT4O), BLN), BL, BL)
make('smollm digits', BYTE_FREE, None, seq(N('Digits', individual_digits=True), BL), None, BL)
make('digits contiguous', BYTE_FREE, None, seq(N('Digits', individual_digits=False), BL), None, BL)
make('digits no regex', BYTE_FREE, None, seq(N('Digits', individual_digits=True), BLN), None, BL)
make('deepseek', BYTE_FREE, nseq(), seq(split(r'\p{N}{1,3}'), split(r'[一-龥぀-ゟ゠-ヿ]+'), split(QWEN), BLN), BOS, BL, FLAGS)
make('starcoder punctuation', BYTE_FREE, None, seq(N('Punctuation', behavior='Contiguous'), BL, N('Digits', individual_digits=False), split('[0-9][0-9][0-9]')), None, BL)
make('roberta', BYTE_FREE, None, {**BL, 'add_prefix_space': True}, lambda ids: dict(type='RobertaProcessing', sep=['</s>', ids['</s>']], cls=['<s>', ids['<s>']], trim_offsets=True, add_prefix_space=True), BL, PLAIN + [S('<mask>', lstrip=True)])
for behavior in ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']:
    make(f'split {behavior}', BYTE_FREE, None, seq(split(r'\s|\d', behavior), split('a', behavior, True, 'String'), split('  ', behavior, False, 'String'), BLN), None, BL)
    make(f'split inverted {behavior}', BYTE_FREE, None, seq(split(r'\p{L}+', behavior, True), BLN), None, BL)
    make(f'punctuation {behavior}', WL, None, seq(N('WhitespaceSplit'), N('Punctuation', behavior=behavior)), None, None)
make('byte-level normalizer', BYTE_FREE, N('ByteLevel'), split(r'Ġ?[a-zA-Z]+'), None, BL)

# SentencePiece-style BPE
make('llama2', with_bytes(SP_FREE, fuse_unk=True), LLAMA2_NORM, None, BOS, SP_DEC)
make('llama2 flags', with_bytes(SP_FREE, fuse_unk=True), LLAMA2_NORM, None, BOS, SP_DEC, FLAGS)
make('llama2 no bytes', bpe(SP_FREE, fuse_unk=True), LLAMA2_NORM, None, BOS, SP_DEC)
make('llama2 no fuse', bpe(SP_FREE, fuse_unk=False), LLAMA2_NORM, None, BOS, SP_DEC)
make('llama2 some bytes', with_bytes(SP_FREE, BYTES[:0xE0], fuse_unk=True), LLAMA2_NORM, None, BOS, SP_DEC)
make('llama2 no unk', with_bytes(SP_FREE, BYTES[:0xE0], unk_token=None), LLAMA2_NORM, None, BOS, SP_DEC)
for scheme in ['always', 'first', 'never']:
    for is_split in [True, False]:
        make(f'metaspace bpe {scheme} {"split" if is_split else "whole"}', bpe(SP_FREE, fuse_unk=True), None, meta(scheme, is_split), BOTH, meta(scheme, is_split))
make('mistral first whole flags', with_bytes(SP_FREE, fuse_unk=True), None, meta('first', False), BOS, SP_DEC, FLAGS)
make('mistral first split flags', with_bytes(SP_FREE, fuse_unk=False), None, meta('first', True), BOS, SP_DEC, FLAGS)
make('gemma', with_bytes(SP_FREE, fuse_unk=True), replace(' ', SPACE), split(' ', 'MergedWithPrevious', False, 'String'), BOS, GEMMA_DEC, PLAIN + [dict(content='\n' * n) for n in (1, 2, 3)] + [dict(content=SPACE * n) for n in (2, 3)])
make('bpe ignore merges', with_bytes(SP_FREE, ignore_merges=True, fuse_unk=True), replace(' ', SPACE), None, BOS, GEMMA_DEC)
make('bpe no space token', bpe({**SP_FREE, 'vocab': {k: i for i, k in enumerate(k for k in SP_FREE['vocab'] if SPACE not in k)}, 'merges': [m for m in SP_FREE['merges'] if SPACE not in ''.join(m)]}, fuse_unk=True), None, meta('always', True), None, meta('always', True))
make('bpe end of word', WORD, N('Lowercase'), N('WhitespaceSplit'), None, N('BPEDecoder', suffix='</w>'))
make('bpe end of word fused', bpe(WORD, fuse_unk=True), N('Lowercase'), N('WhitespaceSplit'), None, N('BPEDecoder', suffix='</w>'), FLAGS)
make('bpe subword prefix', PREFIX, None, N('Whitespace'), None, N('WordPiece', prefix='##', cleanup=False))
make('bpe twice merged', bpe(BYTE, merges=BYTE['merges'] + BYTE['merges'][:20]), None, BL, None, BL)

# Unigram
for scheme in ['always', 'first', 'never']:
    for is_split in [True, False]:
        make(f'unigram {scheme} {"split" if is_split else "whole"}', unigram(CROSS), None, meta(scheme, is_split), BOTH, meta(scheme, is_split))
make('unigram bytes', unigram(CROSS, BYTES, byte_fallback=True), None, meta('always', True), BOTH, dseq(replace(SPACE, ' '), N('ByteFallback'), N('Fuse'), N('Strip', content=' ', start=1, stop=0)))
make('unigram bytes whole flags', unigram(CROSS, BYTES, byte_fallback=True), None, meta('first', False), BOTH, dseq(replace(SPACE, ' '), N('ByteFallback'), N('Fuse')), FLAGS)
make('unigram some bytes', unigram(CROSS, BYTES[:0xE0], byte_fallback=True), None, meta('always', True), BOTH, SP_DEC)
make('unigram bytes unused', unigram(CROSS, BYTES, byte_fallback=False), None, meta('always', True), BOTH, SP_DEC)
make('t5', unigram(CROSS), N('NFKC'), seq(N('WhitespaceSplit'), meta('always', True)), template([], ['</s>']), meta('always', True))
make('xlm-r', unigram(CROSS), nseq(N('NFKC'), replace(' {2,}', ' ', 'Regex')), seq(N('WhitespaceSplit'), meta('always', True)), BOTH, meta('always', True), FLAGS)
make('whitespace then first', unigram(CROSS), None, seq(N('WhitespaceSplit'), meta('first', True)), BOTH, meta('first', True), FLAGS)
make('unigram no space', {**unigram(), 'vocab': [v for v in UNI['vocab'] if SPACE not in v[0]]}, None, meta('always', True), BOTH, meta('always', True))
make('unigram no pre-tokenizer', unigram(CROSS, BYTES, byte_fallback=True), nseq(replace(' ', SPACE)), None, BOTH, GEMMA_DEC)
make('unigram strip prepend', unigram(CROSS), nseq(N('Strip', strip_left=True, strip_right=True), N('Prepend', prepend=SPACE), replace(' ', SPACE)), meta('never', True), BOTH, meta('always', True), SOLID)

# Ids of added tokens that the file has otherwise, and tokens that it has twice
def make_odd(name, change):
    make(name, BYTE, None, BL, BOTH, BL, FLAGS)
    change(made[-1][1]['added_tokens'])
def gaps(tokens):
    for t in tokens[5:]: t['id'] += 7
make_odd('added ids with gaps', gaps)
def twice(tokens):
    tokens.append({**tokens[3], 'single_word': not tokens[3]['single_word'], 'id': tokens[-1]['id'] + 1})
    tokens.append({**tokens[4], 'lstrip': True, 'special': True})
    tokens.append({**tokens[6], 'id': 40, 'content': 'new'})
    tokens.append({**tokens[6], 'id': 41, 'content': 'a'})
make_odd('added twice', twice)
def backwards(tokens): tokens.reverse()
make_odd('added backwards', backwards)
make('merges of bytes', with_bytes({**SP_FREE, 'vocab': {**SP_FREE['vocab'], '<0xE4><0xBD>': len(SP_FREE['vocab'])}, 'merges': SP_FREE['merges']}, fuse_unk=True), LLAMA2_NORM, None, BOS, SP_DEC)
made[-1][1]['model']['merges'] = [*SP_FREE['merges'], ['<0xE4>', '<0xBD>']]

# WordPiece and WordLevel
CLS = [S('[CLS]'), S('[SEP]'), S('[UNK]'), S('[PAD]'), S('[MASK]')]
bert_post = lambda ids: dict(type='BertProcessing', sep=['[SEP]', ids['[SEP]']], cls=['[CLS]', ids['[CLS]']])
make('bert', WP, BERT_NORM(), N('BertPreTokenizer'), bert_post, N('WordPiece', prefix='##', cleanup=True), CLS)
make('bert no clean-up', WP, BERT_NORM(clean_text=False), N('BertPreTokenizer'), template(['[CLS]'], ['[SEP]']), N('WordPiece', prefix='##', cleanup=False), CLS)
make('bert cased', WP, BERT_NORM(lowercase=False), N('BertPreTokenizer'), bert_post, N('WordPiece', prefix='##', cleanup=True), CLS)
make('bert accents', WP, BERT_NORM(strip_accents=False, handle_chinese_chars=False), N('BertPreTokenizer'), bert_post, N('WordPiece', prefix='##', cleanup=True), FLAGS + CLS)
make('wordpiece whitespace', bpe(WP, max_input_chars_per_word=10), N('Lowercase'), N('Whitespace'), None, N('WordPiece', prefix='##', cleanup=False), CLS)
make('wordlevel', WL, None, N('Whitespace'), BOTH, None, FLAGS)
make('wordlevel delimiter', WL, None, N('CharDelimiterSplit', delimiter=' '), BOTH, None)
make('wordlevel fixed', {**WL, 'vocab': {**WL['vocab'], 'ab': 120, '🙂 ': 121, 'é': 122}}, None, seq(N('FixedLength', length=2)), None, None)

# Normalizers, each with characters as tokens so that every change shows
CHARS = dict(type='BPE', dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=True, ignore_merges=False,
             vocab={c: i for i, c in enumerate(['<s>', '</s>', '<unk>'] + BYTES + [chr(c) for c in range(32, 127)] + [SPACE])}, merges=[])
for name, norm in dict(nfc=N('NFC'), nfd=N('NFD'), nfkc=N('NFKC'), nfkd=N('NFKD'), lowercase=N('Lowercase'), accents=nseq(N('NFD'), N('StripAccents')), accents_only=N('StripAccents'), strip_left=N('Strip', strip_left=True, strip_right=False), strip_right=N('Strip', strip_left=False, strip_right=True), strip=nseq(N('Strip', strip_left=True, strip_right=True), N('Prepend', prepend='>')),
        replace_string=replace('a', '$&b$1'), replace_regex=replace(r'\s+', ' ', 'Regex'), replace_word=replace(r'\b\w+\b', '<$0>', 'Regex'), replace_empty=replace(r'x*', '-', 'Regex'), nmt=N('Nmt'), emptied=nseq(replace(' ', ''), N('Prepend', prepend='>'))).items():
    make(f'normalizer {name}', CHARS, norm, None, None, dseq(N('ByteFallback'), N('Fuse')), FLAGS if name in ('lowercase', 'nfkd') else SOLID if name == 'strip' else PLAIN)

# Decoders
CTC = dict(vocab={c: i for i, c in enumerate(['<pad>', '<s>', '</s>', '<unk>', '|'] + list("abcdefghijklmnopqrstuvwxyz'.,!? ") + ['do not'])})
for cleanup in [True, False]:
    make(f'ctc {cleanup}', dict(type='WordLevel', unk_token='<unk>', **CTC), N('Lowercase'), split('', 'Isolated', False, 'Regex'), None, N('CTC', pad_token='<pad>', word_delimiter_token='|', cleanup=cleanup), [S('<pad>')] + PLAIN)
for name, dec in dict(strip=N('Strip', content=SPACE, start=2, stop=1), fused_strip=dseq(N('Fuse'), N('Strip', content='e', start=1, stop=2)), dollar=replace(SPACE, '$&$1 '), regex=replace('[aeiou]', '_', 'Regex'), none=None, metaspace_plain=dict(type='Metaspace', replacement=SPACE, prepend_scheme='never', split=True), metaspace_bare=dict(type='Metaspace', replacement=SPACE),
        metaspace_fallback=dseq(N('ByteFallback'), meta('always')), wordpiece=N('WordPiece', prefix=SPACE, cleanup=True), bpe=N('BPEDecoder', suffix='e'), bytelevel=BL).items():
    make(f'decoder {name}', with_bytes(SP_FREE, fuse_unk=True), LLAMA2_NORM, None, None, dec, FLAGS if name in ('none', 'metaspace_fallback', 'bytelevel', 'metaspace_plain') else PLAIN)
make('decoder bytelevel added', BYTE, None, BL, None, BL, FLAGS + [dict(content=c) for c in ('Ġ', 'ü', 'ĠÃ', '<é>', '  ', '<｜e▁s｜>', '\u0085')])

def record(name, j, texts):
    t = Tokenizer.from_str(json.dumps(j))
    def encoded(text, special):
        try: return t.encode(text, add_special_tokens=special).ids
        except BaseException as e: return None
    def decoded(ids, skip):
        try: return t.decode(ids, skip_special_tokens=skip)
        except BaseException as e: return None
    whole_texts = TEXTS + texts
    ids = [encoded(x, False) for x in whole_texts]
    whole = [encoded(x, True) for x in whole_texts]
    hello, around = whole_texts.index('hello'), [[], []]
    for at in range(3):
        if ids[hello] and whole[hello][at:at + len(ids[hello])] == ids[hello]:
            around = [whole[hello][:at], whole[hello][at + len(ids[hello]):]]
            break
    plain_texts = [decoded(i, False) if i else '' for i in ids]
    plain = [0 if a == b else a for a, b in zip(plain_texts, whole_texts)]
    skipped = [decoded(w, True) if w else '' for w in whole]
    size = max(t.get_vocab().values()) + 1
    rng = random.Random(name)
    of = lambda s: t.token_to_id(s)
    lists = [[rng.randrange(size) for _ in range(rng.randint(2, 6))] for _ in range(40)]
    byte = lambda *bs: [of(f'<0x{b:02X}>') for b in bs]
    if of('<0x41>') is not None and of('<0xEF>') is not None:
        x = of('a')
        for bs in [(0xEF, 0xBB, 0xBF), (0xC3,), (0xC3, 0xA9), (0x41, 0xC3), (0xC3, 0x28), (0xF0, 0x9F, 0x99, 0x82), (0xF0, 0x9F, 0x99), (0xE4, 0xBD, 0xA0, 0xE5), (0xED, 0xA0, 0x80), (0x0A,), (0x20,), (0xEF, 0xBB), (0xFF,)]:
            lists += [byte(*bs), [x, *byte(*bs)], [*byte(*bs), x], [x, *byte(*bs), x], [*byte(*bs), *byte(*bs)], [0, *byte(*bs), 1]]
    letters = bytes_to_letters()
    if of(letters[0xC3]) is not None and of(letters[0xEF]) is not None:
        b = lambda *bs: [of(letters[i]) for i in bs]
        for bs in [(0xEF, 0xBB, 0xBF), (0xC3,), (0xC3, 0xA9), (0x41, 0xC3), (0xC3, 0x28), (0xF0, 0x9F, 0x99, 0x82), (0xF0, 0x9F, 0x99), (0xE4, 0xBD, 0xA0, 0xE5), (0xFF,)]:
            for special in [i for i in (of('<s>'), of('é'), of('<n>')) if i is not None]:
                lists += [b(*bs), [special, *b(*bs)], [*b(*bs), special], [*b(*bs), special, *b(*bs)], [*b(*bs[:1]), special, *b(*bs[1:])]]
    lists += [[size + 5], [0, size + 5, 1], [1, 0], [0, 0, 1, 1]]
    for i in [v for v in (of('<ns>'), of('World'), of('Hello'), of('<mask>'), of('[X]'), of('Ünï')) if v is not None]: lists.append([5, i, 6])
    lists = [l for l in lists if None not in l]
    long = ' '.join(whole_texts)
    long = (long * (24000 // len(long) + 1))[:24000]
    long_ids = encoded(long, False)
    return dict(name=name, json=j, texts=texts, ids=ids, around=around, whole=[None if w is not None and i is not None and w == around[0] + i + around[1] else w for w, i in zip(whole, ids)], plain=plain, skipped=[0 if a == b else a for a, b in zip(skipped, plain_texts)],
        singles=[decoded([i], False) for i in range(size)], singles_skipped=[decoded([i], True) for i in range(size) if i in {a['id'] for a in j['added_tokens']}], lists=lists, lists_text=[decoded(l, False) for l in lists], lists_skipped=[decoded(l, True) for l in lists],
        added_ids=[t.token_to_id(a['content']) for a in j['added_tokens']], long=None if long_ids is None else [len(long_ids), hashlib.sha1(','.join(map(str, long_ids)).encode()).hexdigest()])

def bytes_to_letters():
    n, out = 0, []
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174: out.append(chr(b))
        else:
            out.append(chr(256 + n)); n += 1
    return out

if __name__ == '__main__':
    out, texts, shared = [], {}, []
    for name, j, own in made:
        try: r = record(name, j, own)
        except BaseException as e:
            print('left out:', name, repr(e)[:200], file=sys.stderr)
            continue
        # Models and texts are kept once.
        if j['model'] not in shared: shared.append(j['model'])
        r['json'] = {**j, 'model': shared.index(j['model'])}
        r['texts'] = [texts.setdefault(x, len(texts)) for x in TEXTS + r['texts']]
        out.append(r)
    with open(sys.argv[1], 'w') as f: json.dump(dict(version=tokenizers.__version__, texts=list(texts), models=shared, tokenizers=out), f, ensure_ascii=False, separators=(',', ':'))
    print(len(out), 'tokenizers')
