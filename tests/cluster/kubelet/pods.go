package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// absent is the image that is never there: its container does not start.
const absent = "absent"

// pods plays the life of pods: pending, bound, running or succeeded, terminating, gone.
type pods struct {
	client   kubernetes.Interface
	node     string
	factory  informers.SharedInformerFactory
	informer cache.SharedIndexInformer
	lister   corelisters.PodLister
	queue    workqueue.TypedRateLimitingInterface[string]
}

func newPods(client kubernetes.Interface, node string, schedule bool) *pods {
	tweak := func(options *metav1.ListOptions) {
		if !schedule {
			options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(tweak))
	p := &pods{
		client:   client,
		node:     node,
		factory:  factory,
		informer: factory.Core().V1().Pods().Informer(),
		lister:   factory.Core().V1().Pods().Lister(),
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	enqueue := func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			p.queue.Add(key)
		}
	}
	_, _ = p.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
	})
	return p
}

// run works until ctx ends.
func (p *pods) run(ctx context.Context, workers int) {
	p.factory.Start(ctx.Done())
	for range workers {
		go func() {
			for p.next(ctx) {
			}
		}()
	}
	<-ctx.Done()
	p.queue.ShutDown()
}

func (p *pods) next(ctx context.Context) bool {
	key, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(key)
	if err := p.sync(ctx, key); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		if !apierrors.IsConflict(err) {
			fmt.Fprintf(os.Stderr, "forebay-kubelet: pod %s: %v\n", key, err)
		}
		p.queue.AddRateLimited(key)
		return true
	}
	p.queue.Forget(key)
	return true
}

// sync takes a pod one step further. Each step makes an event that leads to the next one.
func (p *pods) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := p.lister.Pods(namespace).Get(name)
	if err != nil {
		return err
	}
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName == p.node:
		// What a kubelet does once its containers have ended.
		now := int64(0)
		return p.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
			GracePeriodSeconds: &now,
			Preconditions:      &metav1.Preconditions{UID: &pod.UID},
		})
	case pod.DeletionTimestamp != nil:
		return nil
	case pod.Spec.NodeName == "":
		return p.client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: p.node},
		}, metav1.CreateOptions{})
	case pod.Spec.NodeName == p.node && pod.Status.Phase == corev1.PodPending:
		status, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": started(pod)})
		if err != nil {
			return err
		}
		_, err = p.client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
		return err
	}
	return nil
}

// find is the pod if it runs here.
func (p *pods) find(namespace, name string) (*corev1.Pod, bool) {
	pod, err := p.lister.Pods(namespace).Get(name)
	return pod, err == nil && pod.Spec.NodeName == p.node
}

// started is the status of a pod whose containers have just been started. What is not to be restarted has also ended well.
func started(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.NewTime(time.Now())
	finished := pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
	status := corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "127.0.0.1", PodIP: address(pod), StartTime: &now}
	if finished {
		status.Phase = corev1.PodSucceeded
	}
	ready := !finished
	for _, container := range pod.Spec.Containers {
		state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
		up := ready
		switch {
		case isAbsent(container):
			state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
			up, ready = false, false
		case finished:
			state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: up, Started: &up, State: state,
		})
	}
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		condition := corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: now}
		if kind == corev1.PodInitialized {
			condition.Status = corev1.ConditionTrue
		}
		status.Conditions = append(status.Conditions, condition)
	}
	return status
}

func isAbsent(container corev1.Container) bool {
	return strings.HasPrefix(container.Image, absent)
}

// address is made up from the UID; nothing is ever sent to it.
func address(pod *corev1.Pod) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(pod.UID))
	sum := hash.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", 128+sum>>25, sum>>8&0xff, 1+sum&0x7f)
}
