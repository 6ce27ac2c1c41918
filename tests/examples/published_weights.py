"""published_weights.py FOLDER: models as others publish them, in plain torch under the others' names, and what they give.

gpt2/, gpt2_bare.safetensors (without the prefix, with masks and a copy of the head), gpt2.pth; resnet18.pth and .safetensors;
vit.safetensors; bert.safetensors, bert_old.pth (with gamma and beta, and heads of the first training). out.safetensors has
an input and the output of each, named gpt2.in, gpt2.out and so on."""
import pathlib
import sys

try:
    import torch
    from safetensors.torch import save_file
except Exception:
    sys.exit(77)
from torch import nn
from torch.nn import functional as F

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(7)


def noisy(net):
    """Every tensor has values of its own, so that no two can be taken for each other."""
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor).abs() * 0.1 if "var" in name else torch.randn_like(tensor) * 0.1)
    return net.eval()


def of(**modules):
    net = nn.Module()
    for name, module in modules.items():
        setattr(net, name, module)
    return net


# transformers.GPT2LMHeadModel: layers, heads, width, vocabulary, context
LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 2, 4, 32, 60, 16


class Conv1D(nn.Module):
    def __init__(self, out, into):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(into, out) * 0.1), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return x @ self.weight + self.bias


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = [of(ln_1=nn.LayerNorm(WIDTH), attn=of(c_attn=Conv1D(3 * WIDTH, WIDTH), c_proj=Conv1D(WIDTH, WIDTH)),
                     ln_2=nn.LayerNorm(WIDTH), mlp=of(c_fc=Conv1D(4 * WIDTH, WIDTH), c_proj=Conv1D(WIDTH, 4 * WIDTH)))
                  for _ in range(LAYERS)]
        self.transformer = of(wte=nn.Embedding(VOCABULARY, WIDTH), wpe=nn.Embedding(CONTEXT, WIDTH), h=nn.ModuleList(blocks),
                              ln_f=nn.LayerNorm(WIDTH))

    def forward(self, tokens):
        t = self.transformer
        length = tokens.size(1)
        x = t.wte(tokens) + t.wpe(torch.arange(length))
        for block in t.h:
            q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in block.attn.c_attn(block.ln_1(x)).split(WIDTH, 2))
            scores = (q @ k.transpose(2, 3)) / (WIDTH // HEADS) ** 0.5
            seen = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf")).softmax(3) @ v
            x = x + block.attn.c_proj(seen.transpose(1, 2).flatten(2))
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x)), approximate="tanh"))
        return t.ln_f(x) @ t.wte.weight.t()


# torchvision.models.resnet18, of width 8
class BasicBlock(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        if into != out:
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (inner + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class ResNet18(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        into = width
        for stage in range(4):
            out = width << stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(BasicBlock(into, out, 1 if stage == 0 else 2), BasicBlock(out, out, 1)))
            into = out
        self.fc = nn.Linear(into, 20)

    def features(self, x):
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return x.mean((2, 3))

    def forward(self, x):
        return self.fc(self.features(x))


# transformers.ViTForImageClassification: pictures of 8×8 in patches of 4, one head
class Vit(nn.Module):
    def __init__(self, width=32, inner=48, layers=2, classes=10):
        super().__init__()
        layer = lambda: of(attention=of(attention=of(query=nn.Linear(width, width), key=nn.Linear(width, width),
                                                     value=nn.Linear(width, width)),
                                        output=of(dense=nn.Linear(width, width))),
                           intermediate=of(dense=nn.Linear(width, inner)), output=of(dense=nn.Linear(inner, width)),
                           layernorm_before=nn.LayerNorm(width, 1e-12), layernorm_after=nn.LayerNorm(width, 1e-12))
        self.vit = of(embeddings=of(patch_embeddings=of(projection=nn.Conv2d(3, width, 4, 4))),
                      encoder=of(layer=nn.ModuleList(layer() for _ in range(layers))), layernorm=nn.LayerNorm(width, 1e-12),
                      pooler=of(dense=nn.Linear(width, width)))
        self.vit.embeddings.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.vit.embeddings.position_embeddings = nn.Parameter(torch.zeros(1, 5, width))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        e = self.vit.embeddings
        seen = e.patch_embeddings.projection(x).flatten(2).transpose(1, 2)
        x = torch.cat([e.cls_token.expand(len(x), -1, -1), seen], 1) + e.position_embeddings
        for layer in self.vit.encoder.layer:
            h, a = layer.layernorm_before(x), layer.attention.attention
            scores = a.query(h) @ a.key(h).transpose(1, 2) / h.size(2) ** 0.5
            x = x + layer.attention.output.dense(scores.softmax(2) @ a.value(h))
            x = x + layer.output.dense(F.gelu(layer.intermediate.dense(layer.layernorm_after(x))))
        return self.classifier(self.vit.layernorm(x)[:, 0])


# transformers.BertForSequenceClassification, with as many heads as the GPT-2
class Bert(nn.Module):
    def __init__(self, inner=48, layers=2, classes=3):
        super().__init__()
        linear, norm = lambda: of(dense=nn.Linear(WIDTH, WIDTH), LayerNorm=nn.LayerNorm(WIDTH, 1e-12)), nn.LayerNorm(WIDTH, 1e-12)
        looks = lambda: of(query=nn.Linear(WIDTH, WIDTH), key=nn.Linear(WIDTH, WIDTH), value=nn.Linear(WIDTH, WIDTH))
        layer = lambda: of(attention=of(self=looks(), output=linear()), intermediate=of(dense=nn.Linear(WIDTH, inner)),
                           output=of(dense=nn.Linear(inner, WIDTH), LayerNorm=nn.LayerNorm(WIDTH, 1e-12)))
        self.bert = of(embeddings=of(word_embeddings=nn.Embedding(VOCABULARY, WIDTH),
                                     position_embeddings=nn.Embedding(CONTEXT, WIDTH), token_type_embeddings=nn.Embedding(2, WIDTH),
                                     LayerNorm=norm),
                       encoder=of(layer=nn.ModuleList(layer() for _ in range(layers))), pooler=of(dense=nn.Linear(WIDTH, WIDTH)))
        self.classifier = nn.Linear(WIDTH, classes)

    def forward(self, tokens, kinds, mask):
        e = self.bert.embeddings
        places = e.position_embeddings(torch.arange(tokens.size(1)))
        x = e.LayerNorm(e.word_embeddings(tokens) + places + e.token_type_embeddings(kinds))
        for layer in self.bert.encoder.layer:
            looks, after = layer.attention.self, layer.attention.output
            q, k, v = (part(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (looks.query, looks.key, looks.value))
            scores = (q @ k.transpose(2, 3)) / (WIDTH // HEADS) ** 0.5
            seen = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(3) @ v
            x = after.LayerNorm(x + after.dense(seen.transpose(1, 2).flatten(2)))
            x = layer.output.LayerNorm(x + layer.output.dense(F.gelu(layer.intermediate.dense(x))))
        return self.classifier(torch.tanh(self.bert.pooler.dense(x[:, 0])))


def old_names(weights):
    """As in files of the first years, of a model that was trained to find words and the next text."""
    body = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights.items() if not name.startswith("classifier.")}
    linear = {f"cls.predictions.transform.dense.{name}": tensor for name, tensor in nn.Linear(WIDTH, WIDTH).state_dict().items()}
    norm = {f"cls.predictions.transform.LayerNorm.{name}": torch.ones(WIDTH) for name in ("gamma", "beta")}
    return {**body, **linear, **norm, "bert.embeddings.position_ids": torch.arange(CONTEXT)[None],
            "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.bias": torch.zeros(VOCABULARY),
            "cls.seq_relationship.weight": torch.zeros(2, WIDTH), "cls.seq_relationship.bias": torch.zeros(2)}


gpt2, resnet, vit = noisy(Gpt2()), noisy(ResNet18()), noisy(Vit())
weights = gpt2.state_dict()
(folder / "gpt2").mkdir()
save_file(weights, folder / "gpt2/model.safetensors", {"format": "pt"})
bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
for i in range(LAYERS):
    bare[f"h.{i}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
    bare[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
save_file({**bare, "lm_head.weight": bare["wte.weight"].clone()}, folder / "gpt2_bare.safetensors")
torch.save({**weights, "lm_head.weight": weights["transformer.wte.weight"]}, folder / "gpt2.pth")
torch.save(resnet.state_dict(), folder / "resnet18.pth", _use_new_zipfile_serialization=False)
save_file(resnet.state_dict(), folder / "resnet18.safetensors")
save_file(vit.state_dict(), folder / "vit.safetensors", {"format": "pt"})

tokens, picture, small = torch.randint(VOCABULARY, (3, CONTEXT)), torch.randn(2, 3, 64, 64), torch.randn(2, 3, 8, 8)

bert = noisy(Bert())
save_file(bert.state_dict(), folder / "bert.safetensors", {"format": "pt"})
torch.save(old_names(bert.state_dict()), folder / "bert_old.pth")
texts, kinds = torch.randint(VOCABULARY, (3, 11)), (torch.arange(11) > 5).long().expand(3, -1).contiguous()
mask = torch.arange(11) < torch.tensor([[11], [4], [8]])

greedy = torch.tensor([1, 2, 3])
with torch.no_grad():
    for _ in range(10):
        greedy = torch.cat([greedy, gpt2(greedy[None])[0, -1].argmax()[None]])
    save_file({"gpt2.in": tokens, "gpt2.out": gpt2(tokens), "resnet.in": picture, "resnet.out": resnet(picture),
               "gpt2.greedy": greedy,
               "resnet.fc.weight": resnet.fc.weight, "resnet.fc.bias": resnet.fc.bias,
               "vit.in": small, "vit.out": vit(small), "vit.head.weight": vit.classifier.weight,
               "vit.head.bias": vit.classifier.bias,
               "bert.in": texts, "bert.kinds": kinds, "bert.mask": mask, "bert.out": bert(texts, kinds, mask),
               "bert.head.weight": bert.classifier.weight, "bert.head.bias": bert.classifier.bias}, folder / "out.safetensors")
