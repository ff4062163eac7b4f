package main
import ("testing";"time";"errors"
 gobreaker "github.com/sony/gobreaker/v2")
func BenchmarkGobreaker(b *testing.B){
 cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{Interval: 10*time.Second, BucketPeriod: time.Second})
 f := func() (int, error) { return 1, nil }
 b.ReportAllocs()
 for i:=0;i<b.N;i++{ cb.Execute(f) }
}
func BenchmarkGobreakerPlain(b *testing.B){
 cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{Interval: 10*time.Second})
 f := func() (int, error) { return 1, nil }
 for i:=0;i<b.N;i++{ cb.Execute(f) }
}
func BenchmarkGobreakerRejected(b *testing.B){
 cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{Timeout: time.Hour})
 f := func() (int, error) { return 1, errors.New("x") }
 for i:=0;i<10;i++{ cb.Execute(f) }
 b.ResetTimer()
 for i:=0;i<b.N;i++{ cb.Execute(f) }
}
