// SPDX-License-Identifier: MIT

// Go with cgo: goroutines on growing stacks, the C library's resolver, digests, panics.
package main

// #include <math.h>
// #include <stdlib.h>
// #include <string.h>
// #cgo LDFLAGS: -lm
import "C"

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"os/user"
	"sort"
	"strings"
	"sync"
	"unsafe"
)

func deep(n int) (sum int) {
	var room [64]int
	if n == 0 {
		panic("deep")
	}
	defer func() {
		if n%50 == 0 {
			if r := recover(); r != nil {
				sum = room[0]
			}
		}
	}()
	room[0] = n
	return deep(n-1) + room[0]
}

func round() string {
	hash := sha256.New()
	results := make([]string, 8)
	var all sync.WaitGroup
	for i := range results {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			words := make([]string, 300)
			for j := range words {
				text := C.CString(fmt.Sprintf("%d-%s", j*7919%1009, strings.Repeat("x", j%50)))
				words[j] = fmt.Sprintf("%d %.17g", C.strlen(text), float64(C.exp(C.sin(C.double(i*j)))))
				C.free(unsafe.Pointer(text))
			}
			sort.Strings(words)
			results[i] = strings.Join(words, ",") + fmt.Sprint(deep(400))
		}(i)
	}
	all.Wait()
	for _, result := range results {
		hash.Write([]byte(result))
	}
	if root, err := user.LookupId("0"); err == nil {
		hash.Write([]byte(root.Username))
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(round())
	}
}
