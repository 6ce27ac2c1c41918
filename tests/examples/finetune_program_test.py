"""Starts examples/05_finetune as users do, with a GPT-2 of published_weights.py, and reads what it leaves behind."""
import array
import json
import pathlib
import random
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program_case import BUILD, MUSTER, ProgramTest
from published import publish, tensors_of

FINETUNE = f"{BUILD}/bin/finetune"
RANK, ALPHA = 4, 8


class FinetuneTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.files = publish(cls)
        source = random.Random(3)  # each token is the one before, or the next: there is something to learn
        tokens = [7]
        while len(tokens) < 16 * 160 + 1:
            tokens.append((tokens[-1] + source.randrange(2)) % 60)
        pathlib.Path(f"{cls.files}/train.bin").write_bytes(array.array("H", tokens).tobytes())

    def finetune(self, name, *argv, ranks=2, weights="gpt2"):
        options = {"--weights": f"{self.files}/{weights}", "--heads": "4", "--tokens": f"{self.files}/train.bin", "--rank": str(RANK),
                   "--alpha": str(ALPHA), "--layers": "qkv,down", "--lr": "0.02", "--log-every": "1"}
        others = [word for option, value in options.items() if option not in argv for word in (option, value)]
        return self.start(MUSTER, "run", "-n", str(ranks), "--cpu-slots", str(ranks), "--run-dir", f"{self.folder}/{name}", FINETUNE,
                          *others, *argv)

    def trained(self, name, *argv, ranks=2, **more):
        done = self.finetune(name, "--batch", str(8 // ranks), "--steps", "20", "--save-every", "7", *argv, ranks=ranks, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def adapter(self, name):
        return pathlib.Path(f"{self.folder}/{name}/adapter/adapter_model.safetensors")

    def losses(self, name):
        return [json.loads(line)["loss"] for line in pathlib.Path(f"{self.folder}/{name}/metrics.jsonl").read_text().splitlines()]

    def test_ranks_train_as_one_process_and_save_the_adapters_alone(self):
        before = pathlib.Path(f"{self.files}/gpt2/model.safetensors").read_bytes()
        self.trained("one", ranks=1)
        one = self.losses("one")
        self.assertEqual(len(one), 20)
        self.assertLess(sum(one[-5:]), sum(one[:5]) - 1, "nothing was learned")
        whole = tensors_of(self.adapter("one"))
        self.assertEqual(len(whole), 8)
        for name, way in (("two", ()), ("sharded", ("--shard", "full"))):
            with self.subTest(name=name):
                self.trained(name, *way)
                for mine, theirs in zip(self.losses(name), one, strict=True):
                    self.assertAlmostEqual(mine, theirs, delta=1e-4)
                for tensor, (shape, numbers) in tensors_of(self.adapter(name)).items():
                    self.assertEqual(shape, whole[tensor][0])
                    self.assertLess(max(abs(a - b) for a, b in zip(numbers, whole[tensor][1], strict=True)), 1e-3, tensor)
                saved = list(pathlib.Path(f"{self.folder}/{name}/checkpoints/step-20").glob("model*.safetensors"))
                self.assertTrue(saved)
                for file in saved:
                    self.assertTrue(all(".lora_" in tensor for tensor in tensors_of(file)), "more than adapters was saved")
        self.assertEqual(pathlib.Path(f"{self.files}/gpt2/model.safetensors").read_bytes(), before)

    def test_it_resumes_with_the_same_bits(self):
        for name, way in (("ddp", ()), ("full", ("--shard", "full"))):
            with self.subTest(name=name):
                self.trained(name, *way)
                whole = self.adapter(name).read_bytes()
                shutil.rmtree(f"{self.folder}/{name}/checkpoints/step-20")
                shutil.rmtree(f"{self.folder}/{name}/adapter")
                resumed = self.trained(name, *way, "--resume")
                self.assertIn("step-14", resumed.stderr)
                self.assertEqual(self.adapter(name).read_bytes(), whole, "not the same bits as in one go")
                self.assertEqual(len(self.losses(name)), 20)
        # What one way has saved, another resumes.
        shutil.rmtree(f"{self.folder}/full/checkpoints/step-20")
        before = self.losses("full")
        self.trained("full", "--resume", ranks=1)
        for mine, theirs in zip(self.losses("full"), before, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-4)

    def test_an_adapter_is_merged_into_the_weights(self):
        self.trained("run")
        done = self.finetune("merge", "--steps", "0", "--adapter", str(self.adapter("run")), "--merged",
                             f"{self.folder}/out/model.safetensors", ranks=1)
        self.assertEqual(done.returncode, 0, done.stderr)
        base, merged = tensors_of(f"{self.files}/gpt2/model.safetensors"), tensors_of(f"{self.folder}/out/model.safetensors")
        adapter = tensors_of(self.adapter("run"))
        self.assertEqual(sorted("transformer." + name for name in merged), sorted(base))
        changed = [name for name in merged if merged[name][1] != base["transformer." + name][1]]
        self.assertEqual(sorted(changed), [f"h.{i}.{layer}.weight" for i in range(2) for layer in ("attn.c_attn", "mlp.c_proj")])
        for name in changed:
            (into, out), before = base["transformer." + name]
            a, b = (adapter[f"base_model.model.transformer.{name[:-7]}.lora_{which}.weight"][1] for which in "AB")
            for i in range(into):
                for o in range(out):
                    product = sum(b[o * RANK + r] * a[r * into + i] for r in range(RANK))
                    self.assertAlmostEqual(merged[name][1][i * out + o], before[i * out + o] + product * ALPHA / RANK, delta=1e-5)
        # Trained on from there, with an adapter of its own.
        again = self.finetune("again", "--steps", "1", weights=f"../{pathlib.Path(self.folder).name}/out")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_it_writes_on_as_python_does(self):
        likeliest = tensors_of(f"{self.files}/out.safetensors", "gpt2.greedy")["gpt2.greedy"][1]
        done = self.finetune("more", "--steps", "0", "--prompt", "1,2,3", "--sample", "10", "--temperature", "1e-6")
        self.assertEqual(done.stdout.strip(), "[0] " + ",".join(map(str, likeliest)), done.stderr)

    def test_what_does_not_fit_is_refused(self):
        self.trained("run", ranks=1)
        self.assert_fails(self.finetune("run", "--steps", "30", "--resume", "--alpha", "3", ranks=1),
                          "expected the --weights and the --alpha of before")
        self.assert_fails(self.finetune("run", "--steps", "30", "--resume", "--rank", "2", ranks=1), "blocks.0.qkv.lora_A.weight")
        self.assert_fails(self.finetune("other", "--steps", "1", weights="vit.safetensors"), "wte.weight and wpe.weight")
        self.assert_fails(self.finetune("other", "--steps", "1", weights="nowhere"), "nowhere")
        self.assert_fails(self.finetune("other", "--steps", "0", "--adapter", f"{self.files}/vit.safetensors"), "blocks.0.qkv.lora_A")
        pathlib.Path(f"{self.folder}/large.bin").write_bytes(array.array("H", [59, 60] * 20).tobytes())
        self.assert_fails(self.finetune("other", "--steps", "1", "--batch", "1", "--tokens", f"{self.folder}/large.bin"), "60")
        self.assert_fails(self.finetune("other", "--steps", "1", "--prompt", "3,60"), "expected tokens from 0 to 59, got 60")
        self.assert_fails(self.start(FINETUNE, "--weights", "x", "--steps", "1"), "--tokens: expected a file to train on", code=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
