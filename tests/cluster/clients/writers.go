package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// write is one acknowledged write. A delete's answer carries no resource version, so it has the UID only.
type write struct {
	Event string `json:"event"`
	Name  string `json:"name,omitempty"`
	UID   string `json:"uid,omitempty"`
	RV    string `json:"rv,omitempty"`
	Count int    `json:"count,omitempty"`
}

// writers runs --writers goroutines that create, update and delete ConfigMaps of their own, and reports each success.
// Names are PREFIX-WRITER-N. Of every four objects three stay.
func writers(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("writers", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file`")
	namespace := flags.String("namespace", "default", "namespace, must exist")
	prefix := flags.String("prefix", "w", "start of the names")
	workers := flags.Int("writers", 4, "concurrent writers")
	rate := flags.Int("rate", 200, "writes a second, all writers together")
	count := flags.Int("count", 400, "writes in all; 0: until stdin is closed")
	userAgent := flags.String("user-agent", "forebay-clients/writers", "user agent")
	_ = flags.Parse(args)

	config, err := loadConfig(*kubeconfig, *userAgent, 0, 0)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	// Tokens come at the rate asked for; the end of the budget closes the channel.
	tokens := make(chan struct{})
	go func() {
		defer close(tokens)
		tick := time.NewTicker(time.Second / time.Duration(*rate))
		defer tick.Stop()
		for n := 0; *count == 0 || n < *count; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			select {
			case tokens <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	var wait sync.WaitGroup
	done := make([]int, *workers)
	failed := make([]error, *workers)
	for w := range *workers {
		wait.Go(func() {
			done[w], failed[w] = writeUntilClosed(client.CoreV1().ConfigMaps(*namespace), fmt.Sprintf("%s-%d", *prefix, w), tokens)
		})
	}
	wait.Wait()
	total := 0
	for _, n := range done {
		total += n
	}
	emit(write{Event: "done", Count: total})
	return errors.Join(failed...)
}

// writeUntilClosed makes one write a token. The life of object n: create, update, update, and if n%4 == 3 delete.
func writeUntilClosed(client typedcorev1.ConfigMapInterface, prefix string, tokens <-chan struct{}) (int, error) {
	// Not the caller's context: a write that has begun is finished, so that every change in the cluster is reported.
	ctx := context.Background()
	var object *corev1.ConfigMap
	writes, n, step := 0, 0, 0
	for range tokens {
		var event, rv string
		var err error
		switch step {
		case 0:
			event = "add"
			object, err = client.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, n), Labels: map[string]string{"writer": prefix}},
				Data:       map[string]string{"step": "0"},
			}, metav1.CreateOptions{})
		case 1, 2:
			event = "update"
			object.Data["step"] = fmt.Sprint(step)
			object, err = client.Update(ctx, object, metav1.UpdateOptions{})
		default:
			event = "delete"
			err = client.Delete(ctx, object.Name, metav1.DeleteOptions{})
		}
		if err != nil {
			return writes, fmt.Errorf("%s %s-%d: %w", event, prefix, n, err)
		}
		if event != "delete" {
			rv = object.ResourceVersion
		}
		emit(write{Event: event, Name: object.Name, UID: string(object.UID), RV: rv})
		writes++
		step++
		if step > 3 || (step == 3 && n%4 != 3) {
			n, step = n+1, 0
		}
	}
	return writes, nil
}
