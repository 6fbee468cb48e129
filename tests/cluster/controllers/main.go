// Command forebay-controllers is an ordinary controller-runtime controller. Each Widget gets one ConfigMap and one Secret of
// its own, a finalizer and a status; a Widget that is deleted takes them along.
//
// Widgets are cached unstructured, ConfigMaps typed, Secrets as metadata. The children's names are random, so nothing but
// right reads keeps the controller from making them twice: when its caches show none it asks the API server, with a LIST by
// label. It ends when its stdin is closed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	finalizer = "test.forebay.dev/children"
	ownerKey  = "widget"
)

var widgetKind = schema.GroupVersionKind{Group: "test.forebay.dev", Version: "v1", Kind: "Widget"}

func main() {
	kubeconfig := flag.String("kube-config", "", "kubeconfig `file`")
	namespace := flag.String("namespace", "default", "namespace to work in")
	workers := flag.Int("workers", 8, "Widgets worked on at the same time")
	flag.Parse()
	// Errors are part of the test, and what comes of them is looked at in the cluster.
	log.SetLogger(logr.Discard())
	if err := run(*kubeconfig, *namespace, *workers); err != nil {
		fmt.Fprintf(os.Stderr, "forebay-controllers: %v\n", err)
		os.Exit(1)
	}
}

func run(kubeconfig, namespace string, workers int) error {
	ctx, stop := context.WithCancel(ctrl.SetupSignalHandler())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.UserAgent = "forebay-controllers"
	// Otherwise built-in types come as protobuf.
	config.ContentType = "application/json"
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme.Scheme,
		Metrics: server.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Client:  client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	})
	if err != nil {
		return err
	}
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(widgetKind)
	err = ctrl.NewControllerManagedBy(manager).
		Named("widgets").
		For(widget).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.Secret{}, builder.OnlyMetadata).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(&reconciler{Client: manager.GetClient(), live: manager.GetAPIReader()})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}

type reconciler struct {
	client.Client
	live client.Reader
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(widgetKind)
	if err := r.Get(ctx, request.NamespacedName, widget); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	err := r.reconcile(ctx, widget)
	if apierrors.IsConflict(err) {
		return ctrl.Result{Requeue: true}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (r *reconciler) reconcile(ctx context.Context, widget *unstructured.Unstructured) error {
	if !widget.GetDeletionTimestamp().IsZero() {
		return r.finalize(ctx, widget)
	}
	if controllerutil.AddFinalizer(widget, finalizer) {
		if err := r.Update(ctx, widget); err != nil {
			return err
		}
	}
	configMap, err := r.child(ctx, widget, &corev1.ConfigMapList{}, func(meta metav1.ObjectMeta) client.Object {
		return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{ownerKey: widget.GetName()}}
	})
	if err != nil {
		return err
	}
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	secret, err := r.child(ctx, widget, secrets, func(meta metav1.ObjectMeta) client.Object {
		return &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{ownerKey: widget.GetName()}}
	})
	if err != nil {
		return err
	}
	status := map[string]any{"phase": "Ready", "configMap": configMap, "secret": secret}
	if now, _, _ := unstructured.NestedMap(widget.Object, "status"); fmt.Sprint(now) == fmt.Sprint(status) {
		return nil
	}
	if err := unstructured.SetNestedMap(widget.Object, status, "status"); err != nil {
		return err
	}
	return r.Status().Update(ctx, widget)
}

// child is the name of the Widget's only child of a kind, made if the API server knows none.
func (r *reconciler) child(ctx context.Context, widget *unstructured.Unstructured, list client.ObjectList, make func(metav1.ObjectMeta) client.Object) (string, error) {
	for _, reader := range []client.Reader{r.Client, r.live} {
		name, err := only(ctx, reader, widget, list)
		if err != nil || name != "" {
			return name, err
		}
	}
	child := make(metav1.ObjectMeta{
		Namespace:    widget.GetNamespace(),
		GenerateName: widget.GetName() + "-",
		Labels:       map[string]string{ownerKey: widget.GetName()},
	})
	if err := controllerutil.SetControllerReference(widget, child, r.Scheme()); err != nil {
		return "", err
	}
	err := r.Create(ctx, child)
	return child.GetName(), err
}

func only(ctx context.Context, reader client.Reader, widget *unstructured.Unstructured, list client.ObjectList) (string, error) {
	err := reader.List(ctx, list, client.InNamespace(widget.GetNamespace()), client.MatchingLabels{ownerKey: widget.GetName()})
	if err != nil {
		return "", err
	}
	var names []string
	switch list := list.(type) {
	case *corev1.ConfigMapList:
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
	case *metav1.PartialObjectMetadataList:
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
	}
	switch len(names) {
	case 0:
		return "", nil
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("%s has %d children of a kind: %v", widget.GetName(), len(names), names)
}

// finalize deletes the children, and lets the Widget go when the API server shows none.
func (r *reconciler) finalize(ctx context.Context, widget *unstructured.Unstructured) error {
	if !controllerutil.ContainsFinalizer(widget, finalizer) {
		return nil
	}
	for _, kind := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}} {
		err := r.DeleteAllOf(ctx, kind, client.InNamespace(widget.GetNamespace()), client.MatchingLabels{ownerKey: widget.GetName()})
		if err != nil {
			return err
		}
	}
	for _, list := range []client.ObjectList{&corev1.ConfigMapList{}, &corev1.SecretList{}} {
		err := r.live.List(ctx, list, client.InNamespace(widget.GetNamespace()), client.MatchingLabels{ownerKey: widget.GetName()})
		if err != nil {
			return err
		}
		if maps, ok := list.(*corev1.ConfigMapList); ok && len(maps.Items) > 0 {
			return fmt.Errorf("%s: config maps are still there after their deletion", widget.GetName())
		}
		if secrets, ok := list.(*corev1.SecretList); ok && len(secrets.Items) > 0 {
			return fmt.Errorf("%s: secrets are still there after their deletion", widget.GetName())
		}
	}
	controllerutil.RemoveFinalizer(widget, finalizer)
	return r.Update(ctx, widget)
}
