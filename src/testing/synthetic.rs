//! Generated clusters: objects that look like the real ones, as many as asked for.
//!
//! The text is made directly in upstream's form and never parsed, so that 100,000 Deployments take a second or two.

use bytes::Bytes;

use super::{
    objects::{self, Object},
    resource::Resource,
    world::{World, WriteError},
};

const NAMESPACE: &str = "team-";

// === impl World ===

impl World {
    /// Adds `count` Deployments of about 4.1 KB each (12 env variables, managedFields, a settled status), spread over
    /// `namespaces` namespaces `team-000`, `team-001`, ...; the n-th is called `app-00000n`.
    ///
    /// # Errors
    /// Deployments are not registered.
    pub fn fill_deployments(&self, namespaces: usize, count: usize) -> Result<usize, WriteError> {
        self.load("deployments.apps", |resource, rv| fill(resource, rv, namespaces, count, deployment))
    }

    /// Adds `count` ConfigMaps of about 0.5 KB.
    ///
    /// # Errors
    /// ConfigMaps are not registered.
    pub fn fill_config_maps(&self, namespaces: usize, count: usize) -> Result<usize, WriteError> {
        self.load("v1/configmaps", |resource, rv| fill(resource, rv, namespaces, count, config_map))
    }

    /// Adds `count` running Pods of about 2 KB.
    ///
    /// # Errors
    /// Pods are not registered.
    pub fn fill_pods(&self, namespaces: usize, count: usize) -> Result<usize, WriteError> {
        self.load("v1/pods", |resource, rv| fill(resource, rv, namespaces, count, pod))
    }

    /// Adds `count` objects of a custom resource, for instance `widgets`.
    ///
    /// # Errors
    /// The resource is not registered.
    pub fn fill_custom(&self, resource: &str, namespaces: usize, count: usize) -> Result<usize, WriteError> {
        self.load(resource, |resource, rv| fill(resource, rv, namespaces, count, custom))
    }
}

/// What a generator gets: everything that differs between two objects.
struct Seed<'a> {
    resource: &'a Resource,
    namespace: String,
    name: String,
    uid: String,
    rv: u64,
    i: usize,
}

fn fill(
    resource: &Resource,
    first_rv: u64,
    namespaces: usize,
    count: usize,
    print: impl Fn(&Seed<'_>) -> String,
) -> Vec<Object> {
    let mut out = Vec::with_capacity(count);
    for (i, rv) in (0..count).zip(first_rv..) {
        let namespace =
            if resource.namespaced { format!("{NAMESPACE}{:03}", i % namespaces.max(1)) } else { String::new() };
        let name = format!("app-{i:06}");
        // Spread over the whole range, as random ones are, yet the same in every run.
        let uid = objects::format_uid((rv as u128).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
        let seed = Seed { resource, namespace, name, uid, rv, i };
        let labels = labels(&seed);
        let text = Bytes::from(print(&seed));
        let key = objects::key(&seed.namespace, &seed.name);
        out.push(Object::from_text(resource, key, seed.uid, rv, text, labels));
    }
    out
}

fn labels(seed: &Seed<'_>) -> Vec<(String, String)> {
    let tier = if seed.i.is_multiple_of(2) { "front" } else { "back" };
    [("app", seed.name.as_str()), ("app.kubernetes.io/managed-by", "kubectl"), ("tier", tier)]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .to_vec()
}

fn label_text(seed: &Seed<'_>) -> String {
    let members: Vec<String> = labels(seed).iter().map(|(k, v)| format!(r#""{k}":"{v}""#)).collect();
    format!("{{{}}}", members.join(","))
}

/// kind, apiVersion and metadata up to and including the labels, in struct order.
fn head(seed: &Seed<'_>, generation: &str) -> String {
    let Seed { resource, namespace, name, uid, rv, .. } = seed;
    format!(
        r#"{}"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{uid}","resourceVersion":"{rv}",{generation}"creationTimestamp":"2026-10-01T08:00:00Z","labels":{}"#,
        objects::type_prefix(resource),
        label_text(seed),
    )
}

fn deployment(seed: &Seed<'_>) -> String {
    use std::fmt::Write as _;
    let Seed { name, i, .. } = seed;
    let mut out = String::with_capacity(4_400);
    out.push_str(&head(seed, r#""generation":1,"#));
    let mut env = String::new();
    let mut fields = String::new();
    for n in 0..12 {
        let comma = if n > 0 { "," } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(env, r#"{comma}{{"name":"SETTING_{n:02}","value":"value-{n}-of-{name}-{:08x}"}}"#, i * 31 + n);
        let _ =
            write!(fields, r#"{comma}"k:{{\"name\":\"SETTING_{n:02}\"}}":{{".":{{}},"f:name":{{}},"f:value":{{}}}}"#);
    }
    let _ = write!(
        out,
        concat!(
            r#","annotations":{{"deployment.kubernetes.io/revision":"1"}},"managedFields":[{{"manager":"kubectl-create","operation":"Update","apiVersion":"apps/v1","time":"2026-10-01T08:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"#,
            r#""f:metadata":{{"f:labels":{{".":{{}},"f:app":{{}},"f:app.kubernetes.io/managed-by":{{}},"f:tier":{{}}}}}},"f:spec":{{"f:progressDeadlineSeconds":{{}},"f:replicas":{{}},"f:revisionHistoryLimit":{{}},"f:selector":{{}},"f:strategy":{{"f:rollingUpdate":{{".":{{}},"f:maxSurge":{{}},"f:maxUnavailable":{{}}}},"f:type":{{}}}},"#,
            r#""f:template":{{"f:metadata":{{"f:labels":{{".":{{}},"f:app":{{}}}}}},"f:spec":{{"f:containers":{{"k:{{\"name\":\"main\"}}":{{".":{{}},"f:env":{{".":{{}},{fields}}},"f:image":{{}},"f:imagePullPolicy":{{}},"f:name":{{}},"f:ports":{{".":{{}},"k:{{\"containerPort\":8080,\"protocol\":\"TCP\"}}":{{".":{{}},"f:containerPort":{{}},"f:protocol":{{}}}}}},"#,
            r#""f:resources":{{".":{{}},"f:limits":{{".":{{}},"f:memory":{{}}}},"f:requests":{{".":{{}},"f:cpu":{{}},"f:memory":{{}}}}}},"f:terminationMessagePath":{{}},"f:terminationMessagePolicy":{{}}}}}},"f:dnsPolicy":{{}},"f:restartPolicy":{{}},"f:schedulerName":{{}},"f:securityContext":{{}},"f:terminationGracePeriodSeconds":{{}}}}}}}}}}}}]}},"#,
            r#""spec":{{"replicas":2,"selector":{{"matchLabels":{{"app":"{name}"}}}},"template":{{"metadata":{{"labels":{{"app":"{name}"}}}},"spec":{{"containers":[{{"name":"main","image":"registry.example.com/team/{name}:v1.{minor}.0","ports":[{{"containerPort":8080,"protocol":"TCP"}}],"env":[{env}],"#,
            r#""resources":{{"limits":{{"memory":"256Mi"}},"requests":{{"cpu":"100m","memory":"128Mi"}}}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"#,
            r#""restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler"}}}},"#,
            r#""strategy":{{"type":"RollingUpdate","rollingUpdate":{{"maxUnavailable":"25%","maxSurge":"25%"}}}},"revisionHistoryLimit":10,"progressDeadlineSeconds":600}},"status":{{"observedGeneration":1,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2,"#,
            r#""conditions":[{{"type":"Progressing","status":"True","lastUpdateTime":"2026-10-01T08:01:00Z","lastTransitionTime":"2026-10-01T08:00:00Z","reason":"NewReplicaSetAvailable","message":"ReplicaSet \"{name}-6d4b75cb6d\" has successfully progressed."}}]}}}}"#,
        ),
        fields = fields,
        env = env,
        name = name,
        minor = i % 40,
    );
    out
}

fn config_map(seed: &Seed<'_>) -> String {
    format!(
        concat!(
            r#"{head},"managedFields":[{{"manager":"kubectl-create","operation":"Update","apiVersion":"v1","time":"2026-10-01T08:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{".":{{}},"f:settings.yaml":{{}}}}}}}}]}},"#,
            r#""data":{{"settings.yaml":"name: {name}\nlevel: {level}\nsize: \u003c 10\n"}}}}"#
        ),
        head = head(seed, ""),
        name = seed.name,
        level = seed.i % 7,
    )
}

fn pod(seed: &Seed<'_>) -> String {
    let Seed { name, i, .. } = seed;
    let (node, a, b) = (i % 50, i / 250 % 250, i % 250);
    let env: Vec<String> =
        (0..12).map(|n| format!(r#"{{"name":"SETTING_{n:02}","value":"value-{n}-of-{name}"}}"#)).collect();
    let condition = |kind: &str| {
        format!(
            r#"{{"type":"{kind}","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-10-01T08:00:07Z"}}"#
        )
    };
    format!(
        concat!(
            r#"{head},"managedFields":[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-10-01T08:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:labels":{{".":{{}},"f:app":{{}}}}}}}}}}]}},"#,
            r#""spec":{{"containers":[{{"name":"main","image":"registry.example.com/team/{name}:v1","env":[{env}],"resources":{{}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"#,
            r#""restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","serviceAccount":"default","nodeName":"node-{node:03}","securityContext":{{}},"schedulerName":"default-scheduler"}},"#,
            r#""status":{{"phase":"Running","conditions":[{ready},{scheduled}],"hostIP":"10.0.0.{node}","podIP":"10.1.{a}.{b}","podIPs":[{{"ip":"10.1.{a}.{b}"}}],"startTime":"2026-10-01T08:00:00Z","qosClass":"BestEffort"}}}}"#
        ),
        head = head(seed, r#""generation":1,"#),
        name = name,
        env = env.join(","),
        node = node,
        a = a,
        b = b,
        ready = condition("Ready"),
        scheduled = condition("PodScheduled"),
    )
}

fn custom(seed: &Seed<'_>) -> String {
    let Seed { resource, namespace, name, uid, rv, i } = seed;
    let namespace = if resource.namespaced { format!(r#""namespace":"{namespace}","#) } else { String::new() };
    let color = ["blue", "green", "red"][i % 3];
    format!(
        concat!(
            r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{"creationTimestamp":"2026-10-01T08:00:00Z","generation":1,"labels":{labels},"#,
            r#""managedFields":[{{"apiVersion":"{api_version}","fieldsType":"FieldsV1","fieldsV1":{{"f:spec":{{".":{{}},"f:color":{{}},"f:size":{{}}}}}},"manager":"kubectl-create","operation":"Update","time":"2026-10-01T08:00:00Z"}}],"#,
            r#""name":"{name}",{namespace}"resourceVersion":"{rv}","uid":"{uid}"}},"spec":{{"color":"{color}","size":{i}}},"status":{{"ready":true}}}}"#
        ),
        api_version = resource.gvr.api_version(),
        kind = resource.kind,
        labels = label_text(seed),
        name = name,
        namespace = namespace,
        rv = rv,
        uid = uid,
        color = color,
        i = i,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_text_is_what_upstream_would_print() {
        let world = World::new(Resource::usual(), 10);
        world.fill_deployments(3, 20).unwrap();
        world.fill_config_maps(3, 20).unwrap();
        world.fill_pods(3, 20).unwrap();
        world.fill_custom("widgets", 3, 20).unwrap();
        for (name, resource, size) in [
            ("deployments", Resource::deployments(), 3_900..4_300),
            ("configmaps", Resource::config_maps(), 400..800),
            ("pods", Resource::pods(), 1_900..2_500),
            ("widgets", Resource::widgets(), 400..800),
        ] {
            assert_eq!(world.len(name), 20);
            for key in world.keys(name) {
                let object = world.object(name, &key).unwrap();
                let printed = Object::new(&resource, &object.node(), object.rv);
                assert_eq!(printed.text, object.text, "{key}");
                assert_eq!((&printed.key, &printed.uid), (&object.key, &object.uid));
                assert_eq!(printed.labels, object.labels);
                assert!(size.contains(&object.text.len()), "{name}: {} bytes", object.text.len());
            }
        }
    }
}
