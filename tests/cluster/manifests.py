"""Manifests of Kubernetes: read, judged by their schemas, and the pods that a cluster would make of them.

Kubernetes' own kinds are judged by the schemas of kubernetes-validate, those of other projects by the schemas in
tests/data/kubernetes. Needs the Python of .deps/kubernetes (scripts/setup.sh test); `missing()` says so.
"""

import dataclasses
import importlib.util
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/kubernetes"
SCHEMAS = ROOT / "tests/data/kubernetes"
VERSION = "1.37"
TRAINER_PORT = 29400  # Kubeflow Trainer's, for PET_MASTER_PORT


def missing():
    """Why manifests cannot be read here; empty when they can."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        return "no kubernetes-validate (scripts/setup.sh test puts it into .deps/kubernetes)"
    return ""


def load(text):
    import yaml
    return [document for document in yaml.safe_load_all(text) if document]


def load_example(name):
    return load((EXAMPLES / name).read_text(encoding="utf-8"))


def custom_schema(document):
    """The schema of another project's kind; nothing for Kubernetes' own."""
    path = SCHEMAS / f"{document['kind'].lower()}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def validate(document):
    """Raises when the API server would refuse the document, or drop a field of it."""
    import jsonschema
    import kubernetes_validate
    from kubernetes_validate.utils import schema_contents
    from referencing import Registry, Resource
    schema = custom_schema(document)
    if schema is None:
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    folder = f"kubernetes-json-schema/v{VERSION}.0-local-strict"
    core = Resource.from_contents(schema_contents(f"{folder}/_definitions.json", VERSION))
    jsonschema.Draft202012Validator(schema, registry=core @ Registry()).validate(document)


def mounted_secret(folder, text, group=None):
    """A folder with the secret, through links, as Kubernetes mounts it; for a pod with an fsGroup that may read it."""
    file = folder / "..2026_01_01" / "muster"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o400 if group is None else 0o440)
    if group is not None:
        shutil.chown(file, 0, group)
    (folder / "..data").symlink_to(file.parent.name)
    (folder / "muster").symlink_to("..data/muster")
    return folder


@dataclasses.dataclass
class Pod:
    """One pod: how it is called, what runs in it and with what."""

    host: str        # its own name
    subdomain: str   # the headless service's
    spec: dict
    environment: dict

    @property
    def name(self):
        return f"{self.host}.{self.subdomain}"

    @property
    def container(self):
        return self.spec["containers"][0]

    @property
    def command(self):
        return [str(word) for word in [*self.container.get("command", []), *self.container.get("args", [])]]

    @property
    def grace(self):
        return self.spec.get("terminationGracePeriodSeconds", 30)


def pods_of_job(name, spec, subdomain=None, environment=None):
    """An indexed Job's."""
    assert spec.get("completionMode", "Indexed") == "Indexed", "the pods of a Job that is not indexed have no names"
    template = spec["template"]["spec"]
    told = {one["name"]: one["value"] for one in template["containers"][0].get("env", []) if "value" in one}
    return [Pod(f"{name}-{index}", subdomain or template["subdomain"], template,
                {**told, **(environment or {}), "JOB_COMPLETION_INDEX": str(index)})
            for index in range(spec["completions"])]


def pods_of_jobset(name, spec, environment=None):
    subdomain = spec.get("network", {}).get("subdomain", name)
    return [pod for jobs in spec["replicatedJobs"] for replica in range(jobs.get("replicas", 1))
            for pod in pods_of_job(f"{name}-{jobs['name']}-{replica}", jobs["template"]["spec"], subdomain, environment)]


def pods_of_train_job(document, runtime):
    """Kubeflow Trainer's: the runtime's jobs, with what the TrainJob says of their trainer, and torchrun's variables."""
    name, trainer = document["metadata"]["name"], document["spec"]["trainer"]
    assert document["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"], "the runtime that it asks for"
    assert "torch" in runtime["spec"]["mlPolicy"], "only this policy sets torchrun's variables"
    jobs = json.loads(json.dumps(runtime["spec"]["template"]["spec"]))
    [job] = jobs["replicatedJobs"]
    assert job["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node", "the name by which Trainer finds the container"
    container.update({key: trainer[key] for key in ("command", "args", "image") if key in trainer})
    container["resources"] = trainer.get("resourcesPerNode", {})
    job["template"]["spec"]["completions"] = trainer["numNodes"]
    variables = {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": "auto",
                 "PET_MASTER_ADDR": f"{name}-{job['name']}-0-0.{name}", "PET_MASTER_PORT": str(TRAINER_PORT)}
    pods = pods_of_jobset(name, jobs, variables)
    for pod in pods:
        pod.environment["PET_NODE_RANK"] = pod.environment["JOB_COMPLETION_INDEX"]
    return pods


def pods_of(documents):
    """The pods of a manifest's documents."""
    found = {document["kind"]: document for document in documents}
    if "Job" in found:
        job = found["Job"]
        return pods_of_job(job["metadata"]["name"], job["spec"])
    if "JobSet" in found:
        return pods_of_jobset(found["JobSet"]["metadata"]["name"], found["JobSet"]["spec"])
    return pods_of_train_job(found["TrainJob"], found["TrainingRuntime"])
