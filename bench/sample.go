package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// sample is a set of measured times.
type sample []time.Duration

// quantile returns the time below which the share q of the sample lies. It sorts the sample.
func (s sample) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func (s sample) p50() time.Duration { return s.quantile(0.5) }
func (s sample) p99() time.Duration { return s.quantile(0.99) }

func (s sample) mean() time.Duration {
	if len(s) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return sum / time.Duration(len(s))
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// call is one call of whatever is measured.
type call func(ctx context.Context) error

// sequential makes n calls, one after another.
func sequential(ctx context.Context, n int, f call) (sample, error) {
	times := make(sample, 0, n)
	for range n {
		began := time.Now()
		if err := f(ctx); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
	return times, nil
}

// flood keeps one call of each of the given kinds in flight for a while, and returns calls a second.
func flood(ctx context.Context, span time.Duration, calls []call) (perSecond float64, n int, err error) {
	var (
		done   atomic.Int64
		failed atomic.Pointer[error]
		work   sync.WaitGroup
	)
	began := time.Now()
	for _, f := range calls {
		work.Go(func() {
			for failed.Load() == nil && time.Since(began) < span {
				if err := f(ctx); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				done.Add(1)
			}
		})
	}
	work.Wait()
	took := time.Since(began)
	if e := failed.Load(); e != nil {
		return 0, 0, *e
	}
	return float64(done.Load()) / took.Seconds(), int(done.Load()), nil
}
