#!/usr/bin/env python3
"""Makes a schema for manifests out of a custom resource's definition, as its project publishes it.

    reduce.py SOURCE CRD.yaml VERSION > KIND.json     SOURCE: where CRD.yaml comes from, for the file itself

The definitions repeat Kubernetes' own types, thousands of lines of them, which become references to the schemas of
kubernetes-validate. Descriptions, and the status, which no manifest has, are left out. As the API server does for
`kubectl apply`, a field that is not named is refused. Needs PyYAML (.deps/kubernetes/bin/python has it).
"""

import json
import pathlib
import sys

import yaml

CORE = "/api/_definitions.json#/$defs/io.k8s."
# What a definition repeats, by fields that only it has.
TYPES = (({"completions", "parallelism", "template"}, "api.batch.v1.JobSpec"),
         ({"containers", "nodeSelector"}, "api.core.v1.PodSpec"),
         ({"limits", "requests", "claims"}, "api.core.v1.ResourceRequirements"),
         ({"nodeAffinity", "podAffinity"}, "api.core.v1.Affinity"),
         ({"configMap", "emptyDir", "hostPath"}, "api.core.v1.Volume"),
         ({"value", "valueFrom"}, "api.core.v1.EnvVar"))
KEPT = {"type", "required", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "anyOf", "pattern", "default"}


def type_of(fields):
    """The reference for an object with these fields; nothing for one that is the resource's own."""
    return next(({"$ref": CORE + name} for own, name in TYPES if own <= fields), None)


def reduced(schema):
    fields = schema.get("properties", {})
    core = type_of(set(fields))
    if core:
        return core
    kept = {key: value for key, value in schema.items() if key in KEPT}
    if "items" in schema:
        kept["items"] = reduced(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = reduced(schema["additionalProperties"])
    if fields:
        kept["properties"] = {name: reduced(value) for name, value in fields.items()}
        kept["additionalProperties"] = False
    return kept


def schema_of(crd, version, source):
    names = crd["spec"]["names"]
    [found] = [one for one in crd["spec"]["versions"] if one["name"] == version]
    schema = found["schema"]["openAPIV3Schema"]
    schema["properties"].pop("status", None)
    whole = reduced(schema)
    whole["properties"]["apiVersion"] = {"enum": [f"{crd['spec']['group']}/{version}"]}
    whole["properties"]["kind"] = {"enum": [names["kind"]]}
    whole["properties"]["metadata"] = {"$ref": CORE + "apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    whole["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": source,
            "$id": f"https://kubernetes.io/api/{names['singular']}.json", **whole}


def main(source, definition, version):
    crd = yaml.safe_load(pathlib.Path(definition).read_text(encoding="utf-8"))
    print(json.dumps(schema_of(crd, version, source), indent=1, sort_keys=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
