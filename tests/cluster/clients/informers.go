package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/features"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// informerEvent is one notification. Event is "synced", "add", "update", "delete", "state" (one a stored object, at the
// end) or "done". Initial marks the adds of the first list.
type informerEvent struct {
	Event     string  `json:"event"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name,omitempty"`
	UID       string  `json:"uid,omitempty"`
	RV        string  `json:"rv,omitempty"`
	Initial   bool    `json:"initial,omitempty"`
	Count     int     `json:"count,omitempty"`
	Millis    float64 `json:"ms,omitempty"`
}

// informers runs one shared informer and reports the sync and every event after it, until stdin is closed or, with
// --until-count, that many events that are not part of the initial list have been seen.
func informers(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("informers", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file`")
	kind := flags.String("kind", "dynamic", "`client`: typed (protobuf), dynamic (JSON) or metadata (PartialObjectMetadata)")
	mode := flags.String("mode", "watchlist", "list or watchlist; must agree with the environment's KUBE_FEATURE_WatchListClient")
	resource := flags.String("resource", "v1/configmaps", "[group/]version/resource")
	namespace := flags.String("namespace", metav1.NamespaceAll, "only this namespace")
	untilCount := flags.Int64("until-count", 0, "stop after this many events; 0: until stdin is closed")
	userAgent := flags.String("user-agent", "forebay-clients/informers", "user agent")
	_ = flags.Parse(args)

	if on := features.FeatureGates().Enabled(features.WatchListClient); on != (*mode == "watchlist") {
		return fmt.Errorf("--mode=%s, but the client-go gate WatchListClient is %v: set KUBE_FEATURE_WatchListClient", *mode, on)
	}
	config, err := loadConfig(*kubeconfig, *userAgent, 0, 0)
	if err != nil {
		return err
	}
	informer, err := newInformer(config, *kind, *resource, *namespace)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var seen atomic.Int64
	report := func(event string, object any, initial bool) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		emit(describe(event, object, initial))
		if !initial && seen.Add(1) == *untilCount {
			cancel()
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, initial bool) { report("add", object, initial) },
		UpdateFunc: func(_, object any) { report("update", object, false) },
		DeleteFunc: func(object any) { report("delete", object, false) },
	})
	if err != nil {
		return err
	}
	start := time.Now()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		informer.Run(ctx.Done())
	}()
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		emit(informerEvent{Event: "synced", Count: len(informer.GetStore().ListKeys()), Millis: millis(time.Since(start))})
	} else if ctx.Err() == nil {
		return errors.New("informer stopped before it had synced")
	}
	<-ctx.Done()
	<-stopped
	for _, object := range informer.GetStore().List() {
		emit(describe("state", object, false))
	}
	emit(informerEvent{Event: "done", Count: int(seen.Load())})
	return nil
}

func newInformer(config *rest.Config, kind, resource, namespace string) (cache.SharedIndexInformer, error) {
	gvr, err := parseResource(resource)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "typed":
		config.ContentType = "application/vnd.kubernetes.protobuf"
		config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		factory := kubeinformers.NewSharedInformerFactoryWithOptions(client, 0, kubeinformers.WithNamespace(namespace))
		generic, err := factory.ForResource(gvr)
		if err != nil {
			return nil, err
		}
		return generic.Informer(), nil
	case "dynamic":
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return dynamicinformer.NewFilteredDynamicInformer(client, gvr, namespace, 0, cache.Indexers{}, nil).Informer(), nil
	case "metadata":
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return metadatainformer.NewFilteredMetadataInformer(client, gvr, namespace, 0, cache.Indexers{}, nil).Informer(), nil
	}
	return nil, fmt.Errorf("--kind=%s: expected typed, dynamic or metadata", kind)
}

func describe(event string, object any, initial bool) informerEvent {
	accessor, err := meta.Accessor(object)
	if err != nil {
		fail("%s of a %T: %v", event, object, err)
	}
	return informerEvent{
		Event:     event,
		Namespace: accessor.GetNamespace(),
		Name:      accessor.GetName(),
		UID:       string(accessor.GetUID()),
		RV:        accessor.GetResourceVersion(),
		Initial:   initial,
	}
}
