// Command forebay-clients is a set of unmodified client-go programs that forebay's tests point at an API server, directly
// and through forebay. Each subcommand reports what it saw as JSON lines on stdout and ends when its stdin is closed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const usage = "usage: forebay-clients informers|detector|writers --kubeconfig FILE [flags]; --help after a subcommand lists its flags"

func main() {
	if len(os.Args) < 2 {
		fail("%s", usage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx = stdinClosed(ctx)
	var err error
	switch os.Args[1] {
	case "informers":
		err = informers(ctx, os.Args[2:])
	case "detector":
		err = detector(ctx, os.Args[2:])
	case "writers":
		err = writers(ctx, os.Args[2:])
	default:
		fail("%s", usage)
	}
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "forebay-clients: "+format+"\n", args...)
	os.Exit(1)
}

// loadConfig reads a kubeconfig the way every client-go program does. qps 0 means no limit.
func loadConfig(kubeconfig, userAgent string, qps, burst int) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	config.QPS, config.Burst = float32(qps), burst
	if qps == 0 {
		config.QPS = -1
	}
	return config, nil
}

// parseResource reads "apps/v1/deployments", or "v1/pods" for the core group.
func parseResource(s string) (schema.GroupVersionResource, error) {
	parts := strings.Split(s, "/")
	switch len(parts) {
	case 2:
		return schema.GroupVersionResource{Version: parts[0], Resource: parts[1]}, nil
	case 3:
		return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
	}
	return schema.GroupVersionResource{}, fmt.Errorf("resource %q: expected [group/]version/resource", s)
}

var (
	outMu sync.Mutex
	out   = json.NewEncoder(os.Stdout)
)

// emit writes one JSON line. A reader that has gone away ends the program.
func emit(v any) {
	outMu.Lock()
	defer outMu.Unlock()
	if err := out.Encode(v); err != nil {
		os.Exit(1)
	}
}

// stdinClosed is done once whoever started the program has closed its stdin, or has died.
func stdinClosed(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
