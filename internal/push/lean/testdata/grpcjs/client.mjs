// SPDX-License-Identifier: Apache-2.0
// A client of @grpc/grpc-js that plays one scene: node client.mjs ADDRESS SCENE

import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';
import grpc from '@grpc/grpc-js';

const same = (b) => b;

class Call {
  constructor(client, deadline) {
    this.received = [];
    this.waiting = [];
    this.stream = client.makeBidiStreamRequest('/test.Talk/Talk', same, same, new grpc.Metadata(), deadline ? { deadline } : {});
    this.stream.on('data', (m) => this.give({ message: m.toString() }));
    this.stream.on('status', (status) => this.give({ status }));
    this.stream.on('error', () => {}); // the status says it
    this.headers = new Promise((resolve) => this.stream.on('metadata', resolve));
  }
  give(what) {
    const next = this.waiting.shift();
    if (next) next(what); else this.received.push(what);
  }
  say(text) { this.stream.write(Buffer.from(text)); }
  next() {
    return this.received.length ? Promise.resolve(this.received.shift()) : new Promise((resolve) => this.waiting.push(resolve));
  }
  async ask(text) {
    this.say(text);
    const { message, status } = await this.next();
    assert.equal(status, undefined);
    return message;
  }
  async ended() {
    for (;;) {
      const { status } = await this.next();
      if (status) return status;
    }
  }
  async bye() {
    this.stream.end();
    assert.equal((await this.ended()).code, grpc.status.OK);
  }
}

const check = (client) => new Promise((resolve, reject) => {
  client.makeUnaryRequest('/grpc.health.v1.Health/Check', same, same, Buffer.alloc(0), (err, answer) => (err ? reject(err) : resolve(answer)));
});

const scenes = {
  async talk(client) {
    const call = new Call(client);
    for (let i = 0; i < 100; i++) assert.equal(await call.ask(`echo ${i}`), String(i));
    await call.bye();
  },
  async large(client) {
    const call = new Call(client);
    assert.equal((await call.ask('big 20000000')).length, 20_000_000);
    assert.equal(await call.ask('size'.padEnd(1_000_000)), '1000000');
    call.say('many 3000');
    call.stream.end();
    let n = 0;
    for (;;) {
      const { message, status } = await call.next();
      if (status) { assert.equal(status.code, grpc.status.OK); break; }
      assert.equal(message.length, 1000);
      n++;
    }
    assert.equal(n, 3000);
  },
  async status(client) {
    const call = new Call(client);
    call.say('fail 8');
    const status = await call.ended();
    assert.equal(status.code, 8);
    assert.equal(status.details, 'süß % so\nit is');
    assert.ok(status.metadata.get('grpc-status-details-bin')[0].includes('RetryInfo'));
  },
  async headers(client) {
    const call = new Call(client);
    call.say('headers');
    assert.deepEqual((await call.headers).get('before'), ['1']);
    call.stream.end();
    const status = await call.ended();
    assert.deepEqual(status.metadata.get('after'), ['2']);
    assert.deepEqual(status.metadata.get('raw-bin'), [Buffer.from([0, 255])]);
  },
  async deadline(client) {
    const call = new Call(client, Date.now() + 200);
    call.say('wait');
    assert.equal((await call.ended()).code, grpc.status.DEADLINE_EXCEEDED);
  },
  async cancel(client) {
    const call = new Call(client);
    assert.equal(await call.ask('echo x'), 'x');
    call.say('wait');
    call.stream.cancel();
    assert.equal((await call.ended()).code, grpc.status.CANCELLED);
    await new Call(client).bye();
  },
  async end(client) {
    const call = new Call(client);
    call.say('end');
    assert.equal((await call.ended()).code, grpc.status.ABORTED);
    await new Call(client).bye();
  },
  async parallel(client) {
    await Promise.all(Array.from({ length: 90 }, async (_, i) => {
      const call = new Call(client);
      for (let j = 0; j < 20; j++) assert.equal(await call.ask(`echo ${i}.${j}`), `${i}.${j}`);
      await call.bye();
    }));
  },
  async keepalive(client) {
    const call = new Call(client);
    assert.equal(await call.ask('echo x'), 'x');
    await new Promise((resolve) => setTimeout(resolve, 3500));
    assert.equal(await call.ask('echo y'), 'y');
    await call.bye();
  },
  async goaway(client) {
    const call = new Call(client);
    assert.equal(await call.ask('echo x'), 'x');
    const lines = createInterface({ input: process.stdin });
    const told = new Promise((resolve) => lines.once('line', resolve));
    console.log('open');
    await told;
    assert.equal(await call.ask('echo y'), 'y');
    await call.bye();
    lines.close();
  },
  async handover(client) {
    assert.deepEqual(await check(client), Buffer.from([8, 1]));
  },
  async mixed(client) {
    const call = new Call(client);
    assert.equal(await call.ask('echo x'), 'x');
    assert.deepEqual(await check(client), Buffer.from([8, 1]));
    assert.equal(await call.ask('echo y'), 'y');
    await call.bye();
  },
  async unknown(client) {
    await assert.rejects(new Promise((resolve, reject) => {
      client.makeUnaryRequest('/test.Talk/Nothing', same, same, Buffer.alloc(0), (err, a) => (err ? reject(err) : resolve(a)));
    }), { code: grpc.status.UNIMPLEMENTED });
  },
};

const [address, scene] = process.argv.slice(2);
const client = new grpc.Client(address, grpc.credentials.createInsecure(), {
  'grpc.max_receive_message_length': -1,
  'grpc.keepalive_time_ms': 1000,
  'grpc.keepalive_permit_without_calls': 1,
});
await scenes[scene](client);
client.close();
