// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

//go:embed policies.yaml
var policies []byte
