"""client.py NAMESPACE WIDGETS: what a program on the Python client does.

It lists, gets, creates, patches and watches config maps, then works as an operator until each Widget has its child and its
status. It tells what it saw as JSON lines, without anything that differs between two runs. The cluster is that of
$KUBECONFIG.
"""

import json
import sys

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

SELECTOR = "client=python"
GROUP, VERSION, PLURAL = "test.forebay.dev", "v1", "widgets"


def tell(what, value):
    print(json.dumps({"what": what, "value": value}), flush=True)


def config_map(name, value, labels=None, owners=None):
    metadata = client.V1ObjectMeta(name=name, labels=labels, owner_references=owners)
    return client.V1ConfigMap(metadata=metadata, data={"k": value})


def shown(config_map):
    return [config_map.metadata.name, config_map.data]


def reason_of(call):
    try:
        call()
    except ApiException as error:
        return [error.status, json.loads(error.body)["message"]]
    return None


def config_maps(api, namespace):
    def listed():
        return api.list_namespaced_config_map(namespace, label_selector=SELECTOR)

    def read(name):
        return api.read_namespaced_config_map(name, namespace)

    labels = dict([SELECTOR.split("=")])
    tell("none", len(listed().items))
    for n in range(5):
        api.create_namespaced_config_map(namespace, config_map(f"cm-{n}", "new", labels))
        tell("read after create", shown(read(f"cm-{n}")))
    tell("no such object", reason_of(lambda: read("nobody")))
    again = config_map("cm-0", "again", labels)
    tell("created twice", reason_of(lambda: api.create_namespaced_config_map(namespace, again)))
    listing = listed()
    tell("list", [shown(item) for item in listing.items])

    for name in ["cm-1", "cm-2"]:
        api.patch_namespaced_config_map(name, namespace, {"data": {"k": "merged"}})
        tell("read after patch", shown(read(name)))
    api.delete_namespaced_config_map("cm-3", namespace)
    tell("read after delete", reason_of(lambda: read("cm-3")))
    version = listing.metadata.resource_version
    stream = watch.Watch().stream(
        api.list_namespaced_config_map,
        namespace,
        label_selector=SELECTOR,
        resource_version=version,
        timeout_seconds=30,
    )
    for _ in range(3):
        event = next(stream)
        tell(event["type"], shown(event["object"]))
    page = api.list_namespaced_config_map(namespace, label_selector=SELECTOR, limit=2)
    rest = api.list_namespaced_config_map(namespace, label_selector=SELECTOR, limit=2, _continue=page.metadata._continue)
    tell("two pages", [shown(item) for item in page.items + rest.items])


def operator(api, namespace, expected):
    """The loop of most small operators: list, then watch from there."""
    widgets = client.CustomObjectsApi()
    listing = widgets.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL)
    ready = set()
    for widget in listing["items"]:
        reconcile(api, widgets, namespace, widget)
    stream = watch.Watch().stream(
        widgets.list_namespaced_custom_object,
        GROUP,
        VERSION,
        namespace,
        PLURAL,
        resource_version=listing["metadata"]["resourceVersion"],
        timeout_seconds=60,
    )
    for event in stream:
        widget = event["object"]
        reconcile(api, widgets, namespace, widget)
        if widget.get("status", {}).get("phase") == "Ready":
            ready.add(widget["metadata"]["name"])
        if len(ready) == expected:
            break
    done = widgets.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL)["items"]
    tell("reconciled", sorted([widget["metadata"]["name"], widget["status"]] for widget in done))


def reconcile(api, widgets, namespace, widget):
    name = widget["metadata"]["name"]
    child = f"child-of-{name}"
    try:
        api.read_namespaced_config_map(child, namespace)
    except ApiException as error:
        if error.status != 404:
            raise
        owner = client.V1OwnerReference(
            api_version=f"{GROUP}/{VERSION}",
            kind="Widget",
            name=name,
            uid=widget["metadata"]["uid"],
            controller=True,
        )
        api.create_namespaced_config_map(namespace, config_map(child, "child", owners=[owner]))
    if widget.get("status", {}).get("phase") != "Ready":
        status = {"status": {"phase": "Ready", "child": child}}
        widgets.patch_namespaced_custom_object_status(GROUP, VERSION, namespace, PLURAL, name, status)


def main():
    namespace, expected = sys.argv[1], int(sys.argv[2])
    config.load_kube_config()
    api = client.CoreV1Api()
    config_maps(api, namespace)
    operator(api, namespace, expected)


main()
