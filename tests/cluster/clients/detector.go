package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

// detectorReport is the last line of a run. Times are milliseconds since the start of the workers.
type detectorReport struct {
	Event         string  `json:"event"`
	Keys          int     `json:"keys"`
	ListerHits    int     `json:"lister_hits"`
	ListerMisses  int     `json:"lister_misses"`
	DirectGets    int     `json:"direct_gets"`
	DirectLists   int     `json:"direct_lists"`
	StatusGets    int     `json:"status_gets"`
	StatusWrites  int     `json:"status_writes"`
	Conflicts     int     `json:"conflicts"`
	Errors        int     `json:"errors"`
	WrongAnswers  int     `json:"wrong_answers"`
	SyncedMillis  float64 `json:"synced_ms"`
	EmptyMillis   float64 `json:"queue_empty_ms"`
	PeakPerSecond int     `json:"peak_reads_per_second"`
	P50Millis     float64 `json:"read_p50_ms"`
	P99Millis     float64 `json:"read_p99_ms"`
	// Retries counts the tries of a key that failed and were made again.
	Retries int `json:"retries"`
	// StatusesSent is how many status writes of a key have left this process, repetitions by client-go included.
	StatusesSent map[string]int `json:"statuses_sent,omitempty"`
}

// remark is a line about one key: a wrong answer or an error.
type remark struct {
	Event string `json:"event"`
	Key   string `json:"key"`
	Text  string `json:"text"`
}

// detector has the reading habit of a controller whose workers start before its informers have synced: look the object up
// in the lister, and on a miss GET it from the server; list by selector from the lister, and on an empty result LIST from
// the server; read the object freshly before its status is written. The keys ("namespace/name", one a line) are what such
// a controller knows from another, already synced informer. A key with a leading "!" does not exist.
func detector(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("detector", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file`")
	resource := flags.String("resource", "apps/v1/deployments", "[group/]version/resource, with a status subresource")
	workers := flags.Int("workers", 20, "concurrent workers")
	qps := flags.Int("qps", 600, "client-side limit, reads and writes together; 0: none")
	burst := flags.Int("burst", 1000, "client-side burst")
	listEvery := flags.Int("list-every", 10, "list by label selector at every n-th key; 0: never")
	round := flags.Int64("round", 1, "value written to status.replicas")
	informerDelay := flags.Duration("informer-delay", 0, "start the informer this long after the workers")
	retries := flags.Int("retries", 0, "try a key so often again when a request fails, as a work queue does")
	verify := flags.Bool("verify", false, "read after each write, and compare each read with all that was known of the object before")
	keysFile := flags.String("keys", "", "`file` with the keys")
	run := flags.String("run", "run", "run id; the user agent is detector/ID")
	_ = flags.Parse(args)

	keys, err := readKeys(*keysFile)
	if err != nil {
		return err
	}
	gvr, err := parseResource(*resource)
	if err != nil {
		return err
	}
	config, err := loadConfig(*kubeconfig, "detector/"+*run, *qps, *burst)
	if err != nil {
		return err
	}
	sent := &sentStatuses{byKey: map[string]int{}}
	config.Wrap(sent.count)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}

	d := &detection{client: client, gvr: gvr, round: *round, listEvery: *listEvery, retries: *retries, start: time.Now()}
	if *verify {
		d.memory = &memory{shown: map[string]version{}}
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, gvr, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil)
	d.lister = informer.Lister()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	synced := make(chan time.Duration, 1)
	go func() {
		select {
		case <-time.After(*informerDelay):
		case <-ctx.Done():
		}
		go informer.Informer().Run(ctx.Done())
		if cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
			synced <- time.Since(d.start)
		}
	}()

	queue := make(chan int)
	var wait sync.WaitGroup
	for range *workers {
		wait.Go(func() {
			for i := range queue {
				d.process(ctx, i, keys[i])
			}
		})
	}
	for i := range keys {
		queue <- i
	}
	close(queue)
	wait.Wait()
	empty := time.Since(d.start)
	report := d.finish()
	report.Keys, report.EmptyMillis = len(keys), millis(empty)
	if *verify {
		report.StatusesSent = sent.all()
	}
	select {
	case at := <-synced:
		report.SyncedMillis = millis(at)
	case <-time.After(time.Minute):
		return fmt.Errorf("informer has not synced a minute after the queue was empty")
	}
	emit(report)
	return nil
}

func readKeys(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text)), nil
}

type detection struct {
	client    dynamic.Interface
	lister    cache.GenericLister
	gvr       schema.GroupVersionResource
	round     int64
	listEvery int
	retries   int
	start     time.Time
	// memory is nil when answers are not to be compared with earlier ones.
	memory *memory

	mu        sync.Mutex
	counts    detectorReport
	perSecond []int
	latencies []time.Duration
}

// process does for one key what the real controller does, and does it again after a failure.
func (d *detection) process(ctx context.Context, i int, key string) {
	name, absent := strings.CutPrefix(key, "!")
	namespace, name, err := cache.SplitMetaNamespaceKey(name)
	if err != nil {
		d.failed(key, err)
		return
	}
	wait := 50 * time.Millisecond
	for try := 0; ; try++ {
		err := d.try(ctx, i, key, namespace, name, absent)
		if err == nil {
			return
		}
		if try == d.retries || ctx.Err() != nil {
			d.failed(key, err)
			return
		}
		d.count(func(c *detectorReport) { c.Retries++ })
		time.Sleep(wait)
		wait = min(2*wait, time.Second)
	}
}

// try processes a key once. Wrong answers are reported and are no errors.
func (d *detection) try(ctx context.Context, i int, key, namespace, name string, absent bool) error {
	if err := d.fetchTemplate(ctx, key, namespace, name, absent); err != nil {
		return err
	}
	if d.listEvery > 0 && i%d.listEvery == 0 {
		if err := d.fetchBySelector(ctx, key, namespace, name, absent); err != nil {
			return err
		}
	}
	if absent {
		return nil
	}
	return d.updateStatus(ctx, key, namespace, name)
}

// fetchTemplate looks the object up in the lister and, on a miss, GETs it.
func (d *detection) fetchTemplate(ctx context.Context, key, namespace, name string, absent bool) error {
	if object, err := d.lister.ByNamespace(namespace).Get(name); err == nil {
		d.count(func(c *detectorReport) { c.ListerHits++ })
		d.right(key, object.(*unstructured.Unstructured), namespace, name)
		return nil
	}
	d.count(func(c *detectorReport) { c.ListerMisses++; c.DirectGets++ })
	var object *unstructured.Unstructured
	err := d.timed(func() (err error) {
		object, err = d.client.Resource(d.gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err) && absent:
	case apierrors.IsNotFound(err):
		d.wrong(key, "GET says not found")
	case err != nil:
		return err
	case absent:
		d.wrong(key, "GET says found")
	default:
		d.right(key, object, namespace, name)
		d.remember(key, object)
	}
	return nil
}

// fetchBySelector lists by label from the lister; a lister that knows none is not believed, and the server is asked.
func (d *detection) fetchBySelector(ctx context.Context, key, namespace, name string, absent bool) error {
	selector := labels.SelectorFromSet(labels.Set{"app": name})
	if objects, err := d.lister.ByNamespace(namespace).List(selector); err == nil && len(objects) > 0 {
		d.count(func(c *detectorReport) { c.ListerHits++ })
		return nil
	}
	d.count(func(c *detectorReport) { c.ListerMisses++; c.DirectLists++ })
	var list *unstructured.UnstructuredList
	err := d.timed(func() (err error) {
		list, err = d.client.Resource(d.gvr).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
		return err
	})
	if err != nil {
		return err
	}
	want := 1
	if absent {
		want = 0
	}
	if len(list.Items) != want {
		d.wrong(key, fmt.Sprintf("LIST by %s gives %d objects, expected %d", selector, len(list.Items), want))
	}
	for i := range list.Items {
		d.remember(key, &list.Items[i])
	}
	return nil
}

// updateStatus reads the object from the server, always, and writes its status if that changes it; again after a conflict.
func (d *detection) updateStatus(ctx context.Context, key, namespace, name string) error {
	client := d.client.Resource(d.gvr).Namespace(namespace)
	get := func() (object *unstructured.Unstructured, err error) {
		d.count(func(c *detectorReport) { c.StatusGets++ })
		err = d.timed(func() (err error) {
			object, err = client.Get(ctx, name, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			d.wrong(key, "GET before the status update says not found")
		}
		if err == nil {
			d.remember(key, object)
		}
		return object, err
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object, err := get()
		if err != nil {
			return err
		}
		status := map[string]any{"observedGeneration": object.GetGeneration(), "replicas": d.round}
		if reflect.DeepEqual(object.Object["status"], status) {
			return nil
		}
		object.Object["status"] = status
		written, err := client.UpdateStatus(ctx, object, metav1.UpdateOptions{})
		d.count(func(c *detectorReport) {
			if apierrors.IsConflict(err) {
				c.Conflicts++
			} else if err == nil {
				c.StatusWrites++
			}
		})
		if err != nil || d.memory == nil {
			return err
		}
		d.remember(key, written)
		read, err := get()
		if err != nil {
			return err
		}
		// Nobody else writes statuses.
		if replicas, _, _ := unstructured.NestedInt64(read.Object, "status", "replicas"); replicas != d.round {
			d.wrong(key, fmt.Sprintf("wrote status.replicas %d, then read %d", d.round, replicas))
		}
		return nil
	})
}

// remember compares an answer with what was known of the object before: it never becomes older, and never another one.
func (d *detection) remember(key string, object *unstructured.Unstructured) {
	if d.memory == nil {
		return
	}
	if wrong := d.memory.see(key, object); wrong != "" {
		d.wrong(key, wrong)
	}
}

func (d *detection) right(key string, object *unstructured.Unstructured, namespace, name string) {
	if object.GetNamespace() != namespace || object.GetName() != name || object.GetUID() == "" {
		d.wrong(key, fmt.Sprintf("answer is %s/%s", object.GetNamespace(), object.GetName()))
	}
}

// timed runs one read and takes down when it began and how long it took. Waiting for the client's own limiter is included.
func (d *detection) timed(read func() error) error {
	begun := time.Now()
	err := read()
	took := time.Since(begun)
	d.mu.Lock()
	defer d.mu.Unlock()
	second := int(begun.Add(took).Sub(d.start) / time.Second)
	for len(d.perSecond) <= second {
		d.perSecond = append(d.perSecond, 0)
	}
	d.perSecond[second]++
	d.latencies = append(d.latencies, took)
	return err
}

func (d *detection) count(add func(*detectorReport)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	add(&d.counts)
}

func (d *detection) wrong(key, text string) {
	d.count(func(c *detectorReport) { c.WrongAnswers++ })
	emit(remark{Event: "wrong", Key: key, Text: text})
}

func (d *detection) failed(key string, err error) {
	d.count(func(c *detectorReport) { c.Errors++ })
	emit(remark{Event: "error", Key: key, Text: err.Error()})
}

func (d *detection) finish() detectorReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	report := d.counts
	report.Event = "done"
	if len(d.perSecond) > 0 {
		report.PeakPerSecond = slices.Max(d.perSecond)
	}
	if n := len(d.latencies); n > 0 {
		slices.Sort(d.latencies)
		report.P50Millis, report.P99Millis = millis(d.latencies[n/2]), millis(d.latencies[n*99/100])
	}
	return report
}
