package main

import (
	"context"
	"fmt"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// leaseNamespace is where the node lifecycle controller looks for heartbeats.
const leaseNamespace = "kube-node-lease"

// register creates a ready Node that sends the API server's streams to this port, and keeps its lease until ctx ends.
func register(ctx context.Context, client kubernetes.Interface, name string, port int) error {
	plenty := corev1.ResourceList{
		corev1.ResourcePods:   resource.MustParse("100k"),
		corev1.ResourceCPU:    resource.MustParse("100k"),
		corev1.ResourceMemory: resource.MustParse("1Pi"),
	}
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "Test"}
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity:        plenty,
			Allocatable:     plenty,
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse),
			},
		},
	}
	node, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("cannot register node %s: %w", name, err)
	}
	go heartbeats(ctx, client, node)
	return nil
}

func heartbeats(ctx context.Context, client kubernetes.Interface, node *corev1.Node) {
	const seconds = int32(40)
	leases := client.CoordinationV1().Leases(leaseNamespace)
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		now := metav1.NowMicro()
		lease, err := leases.Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil {
			lease.Spec.RenewTime = &now
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		} else {
			holder, duration := node.Name, seconds
			lease = &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{
					Name:            node.Name,
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
				},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &duration, RenewTime: &now},
			}
			_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "forebay-kubelet: no heartbeat: %v\n", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
