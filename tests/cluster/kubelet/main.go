// Command forebay-kubelet is the node of forebay's test clusters: kubelet and, if asked, scheduler.
//
// It registers a Node, binds pods to it, reports them running, finishes their deletions, and serves exec, attach,
// port-forward and logs with the kubelet's own streaming server. A container is no container: exec runs a command of this
// machine, attach echoes, port-forward dials a local port, and what a command writes to $LOG is the container's log.
// It talks to the API server itself, as kubelets do, reports its address as a JSON line, and ends when its stdin is closed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file`")
	name := flag.String("node", "node", "name of its Node")
	schedule := flag.Bool("schedule", false, "bind pods without a node to this one, in every namespace")
	workers := flag.Int("workers", 8, "pods worked on at the same time")
	flag.Parse()
	if err := run(*kubeconfig, *name, *schedule, *workers); err != nil {
		fmt.Fprintf(os.Stderr, "forebay-kubelet: %v\n", err)
		os.Exit(1)
	}
}

func run(kubeconfig, name string, schedule bool, workers int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "forebay-kubelet"
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	logs, err := os.MkdirTemp("", "forebay-kubelet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(logs)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	pods := newPods(client, name, schedule)
	if err := serve(ctx, listener, pods, logs); err != nil {
		return err
	}
	if err := register(ctx, client, name, listener.Addr().(*net.TCPAddr).Port); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"event": "ready", "address": listener.Addr().String()}); err != nil {
		return err
	}
	pods.run(ctx, workers)
	return nil
}
