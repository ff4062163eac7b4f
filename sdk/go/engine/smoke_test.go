package engine

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

func pol() *Policy {
	p := Compile(Merge("a/b/c", []Document{{Scope: "global", Settings: Settings{BreakerConsecutiveEnabled: Bool(true), BreakerRatioEnabled: Bool(true)}}}))
	return &p
}

var origin = time.Now()

func BenchmarkCall(b *testing.B) {
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		c, d := e.Begin(Instant(time.Since(origin)), CallOptions{Idempotent: true})
		if !d.Proceed {
			b.Fatal()
		}
		c.Settle(Instant(time.Since(origin)), Outcome{})
	}
}

func BenchmarkCallNoClock(b *testing.B) {
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	for i := 0; i < b.N; i++ {
		c, d := e.Begin(5, CallOptions{Idempotent: true})
		if !d.Proceed {
			b.Fatal()
		}
		c.Settle(5, Outcome{})
	}
}

func BenchmarkCallPar(b *testing.B) {
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c, _ := e.Begin(Instant(time.Since(origin)), CallOptions{Idempotent: true})
			c.Settle(Instant(time.Since(origin)), Outcome{})
		}
	})
}

func BenchmarkRejected(b *testing.B) {
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	for i := 0; i < 5; i++ {
		c, _ := e.Begin(1, CallOptions{})
		c.Settle(1, Outcome{Kind: OutcomeError})
	}
	e.breaker.until = math.MaxInt64
	e.Stats(2)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		_, d := e.Begin(Instant(time.Since(origin)), CallOptions{})
		if d.Code != CodeBreaker {
			b.Fatal()
		}
	}
}

func TestSize(t *testing.T) {
	t.Log(unsafe.Sizeof(Endpoint{}), unsafe.Sizeof(Call{}), unsafe.Sizeof(Decision{}), unsafe.Sizeof(Policy{}), unsafe.Sizeof(breaker{}), unsafe.Sizeof(budget{}))
}
func BenchmarkSucceed(b *testing.B){
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	b.ReportAllocs()
	for i:=0;i<b.N;i++{
		c, d := e.Begin(Instant(time.Since(origin)), CallOptions{Idempotent:true})
		if !d.Proceed { b.Fatal() }
		if !c.Succeed() { c.Settle(Instant(time.Since(origin)), Outcome{}) }
	}
}
func BenchmarkSucceedNoClock(b *testing.B){
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	for i:=0;i<b.N;i++{
		c, d := e.Begin(5, CallOptions{Idempotent:true})
		if !d.Proceed { b.Fatal() }
		if !c.Succeed() { b.Fatal() }
	}
}
func BenchmarkRejectedNoClock(b *testing.B){
	e := NewEndpoint(Config{Origin: origin, Random: rand.Uint64}, pol(), Overlay{}, Instant(time.Since(origin)))
	for i:=0;i<5;i++ { c,_ := e.Begin(1,CallOptions{}); c.Settle(1,Outcome{Kind:OutcomeError}) }
	e.breaker.until=math.MaxInt64; e.Stats(2)
	b.ReportAllocs(); b.ResetTimer()
	for i:=0;i<b.N;i++{
		_, d := e.Begin(3, CallOptions{})
		if d.Code != CodeBreaker { b.Fatal() }
	}
}
