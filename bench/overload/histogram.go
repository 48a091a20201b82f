package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets for each power of two: the error of a value is below 0.4 %.
const buckets = 128

// histogram counts times. Many goroutines may add to it at once.
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

// quantile returns 0 for an empty histogram.
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
