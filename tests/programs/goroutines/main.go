// SPDX-License-Identifier: MIT

// Functions of goroutines that move between threads, and whose stacks grow and move while they run.
// The protocol is that of tests/programs/leavers.cpp; THREADS are goroutines.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var sink int64

func spin(us int64) {
	end := time.Now().Add(time.Duration(us) * time.Microsecond)
	for time.Now().Before(end) {
	}
}

//go:noinline
func plain(n, us int64) int64 {
	spin(us)
	return n + sink
}

// Goes on on another thread as often as not.
//
//go:noinline
func migrates(n, us int64) int64 {
	spin(us / 2)
	runtime.Gosched()
	spin(us / 2)
	return n + sink
}

//go:noinline
func eats(n int64) int64 {
	var frame [512]int64
	frame[n&511] = n
	if n > 0 {
		return eats(n-1) + frame[n&511]
	}
	return frame[0]
}

// Its stack has to grow, so that it is somewhere else when it returns.
//
//go:noinline
func grows(n, us int64) int64 {
	spin(us)
	return eats(n%40) + sink
}

// Begins with a call for more stack, and then anew.
//
//go:noinline
func large(n, us int64) int64 {
	var frame [4096]int64
	frame[n&4095] = n
	spin(us)
	return frame[(n+sink)&4095]
}

//go:noinline
func panics(n int64) int64 {
	if n%3 == 0 {
		panic("third")
	}
	return n
}

// Returns also when it has recovered from a panic.
//
//go:noinline
func recovers(n, us int64) (result int64) {
	defer func() {
		if recover() != nil {
			result = -1
		}
	}()
	spin(us)
	return panics(n) + sink
}

// A panic goes through it.
//
//go:noinline
func unwound(n, us int64) int64 {
	spin(us)
	return panics(n) + sink
}

//go:noinline
func table(n, us int64) int64 {
	switch n % 12 {
	case 0:
		spin(us)
		return sink + 3
	case 1:
		return n * 5
	case 2:
		return sink - n
	case 3:
		return eats(1)
	case 4:
		n = n ^ sink
	case 5:
		return 7
	case 6:
		n += 3
	case 7:
		return n << 2
	case 8:
		sink = 0
	case 9:
		n *= 9
	case 10:
		return n - 1
	default:
		n = 1
	}
	return n + 1
}

func call(function func(n, us int64) int64, n, us int64, returns *int64) {
	defer func() { recover() }()
	function(n, us)
	atomic.AddInt64(returns, 1)
}

func main() {
	functions := map[string]func(n, us int64) int64{
		"plain": plain, "migrates": migrates, "grows": grows, "large": large,
		"recovers": recovers, "unwound": unwound, "table": table,
	}
	fmt.Println("ready")
	input := bufio.NewReader(os.Stdin)
	for {
		var name string
		var calls, us, routines int64
		if _, err := fmt.Fscan(input, &name, &calls, &us, &routines); err != nil {
			return
		}
		var returns, total int64
		var group sync.WaitGroup
		for routine := int64(0); routine < routines; routine++ {
			group.Add(1)
			go func(routine int64) {
				defer group.Done()
				begin := time.Now()
				for i := int64(0); i < calls; i++ {
					done := make(chan bool)
					go func() { // a small stack of its own
						call(functions[name], i+routine, us, &returns)
						done <- true
					}()
					<-done
				}
				atomic.AddInt64(&total, int64(time.Since(begin)))
			}(routine)
		}
		group.Wait()
		fmt.Println(returns, total/(calls*routines))
	}
}
