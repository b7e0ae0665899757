// Package lines is the line protocol of bench/steady/programs/protocol.py for programs in Go.
package lines

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const Pause = 50 * time.Millisecond
const Poll = 100 * time.Millisecond

type Job struct {
	Bootstrap  []string
	Topic      string
	Partitions int
	Role       string
	Name       string
}

// Given reads the command line. These libraries have no settings by name, so there may be none.
func Given() Job {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: BOOTSTRAP TOPIC PARTITIONS ROLE NAME")
		os.Exit(2)
	}
	partitions, err := strconv.Atoi(os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return Job{strings.Split(os.Args[1], ","), os.Args[2], partitions, os.Args[4], os.Args[5]}
}

func (job Job) Value(number int) string {
	return fmt.Sprintf("%s:%08d", job.Name, number)
}

var saying sync.Mutex

func say(format string, words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Printf(format+"\n", words...)
}

func Ready() { say("ready") }

func Acknowledged(partition int32, offset int64, value string) {
	say("w %d %d %s", partition, offset, value)
}

func Found(partition int32, offset int64, value string) { say("r %d %d %s", partition, offset, value) }

func Assigned(partitions int) { say("b %d", partitions) }

func Failed(err error) { say("e %s", strings.Join(strings.Fields(err.Error()), " ")) }

// Orders is what was said on stdin so far.
type Orders struct {
	mutex    sync.Mutex
	changed  *sync.Cond
	sleeping bool
	ended    bool
}

func Listen() *Orders {
	orders := &Orders{}
	orders.changed = sync.NewCond(&orders.mutex)
	go orders.read()
	return orders
}

func (orders *Orders) read() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		orders.mutex.Lock()
		switch strings.TrimSpace(in.Text()) {
		case "sleep":
			orders.sleeping = true
		case "wake":
			orders.sleeping = false
		case "end":
			orders.ended = true
		}
		orders.changed.Broadcast()
		orders.mutex.Unlock()
	}
	orders.mutex.Lock()
	defer orders.mutex.Unlock()
	if !orders.ended {
		os.Exit(1)
	}
}

// GoOn blocks as long as the client is to sleep. It returns false once the client is to end.
func (orders *Orders) GoOn() bool {
	orders.mutex.Lock()
	defer orders.mutex.Unlock()
	for orders.sleeping && !orders.ended {
		orders.changed.Wait()
	}
	return !orders.ended
}
