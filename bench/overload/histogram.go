package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets a power of two: a value is told with an error below 0.4 %.
const buckets = 128

// A histogram of times, which many may add to at once.
type histogram struct {
	counts [58 * buckets]atomic.Int64
}

func (h *histogram) add(took time.Duration) {
	value := max(int64(took), 0)
	if value < buckets {
		h.counts[value].Add(1)
		return
	}
	shift := bits.Len64(uint64(value)) - 8
	h.counts[shift*buckets+int(value>>shift)].Add(1)
}

func (h *histogram) addAll(other *histogram) {
	for i := range h.counts {
		h.counts[i].Add(other.counts[i].Load())
	}
}

func (h *histogram) count() (sum int64) {
	for i := range h.counts {
		sum += h.counts[i].Load()
	}
	return sum
}

// quantile is 0 where there is nothing.
func (h *histogram) quantile(q float64) time.Duration {
	left := int64(q * float64(h.count()))
	for i := range h.counts {
		left -= h.counts[i].Load()
		if left < 0 {
			return middle(i)
		}
	}
	return 0
}

func middle(bucket int) time.Duration {
	if bucket < buckets {
		return time.Duration(bucket)
	}
	shift := bucket/buckets - 1
	return time.Duration(int64(bucket-shift*buckets)<<shift + int64(1)<<shift/2)
}
