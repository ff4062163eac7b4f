module github.com/policyd/policyd/bench

go 1.26.0

require (
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/policyd/policyd/sdk/go v0.0.0
	github.com/sony/gobreaker/v2 v2.4.0
	golang.org/x/net v0.61.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c // indirect
)

require (
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/policyd/policyd v0.0.0
)

replace github.com/policyd/policyd/sdk/go => ../sdk/go

replace github.com/policyd/policyd => ../
