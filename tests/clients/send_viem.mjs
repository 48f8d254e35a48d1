// Sends COUNT transfers at once with viem, then waits for each of them. Prints their hashes as JSON.
import { createPublicClient, createWalletClient, http } from "viem";
import { foundry } from "viem/chains";

const [url, account, to, count] = process.argv.slice(2);
// On a busy machine the last of them waits longer for its nonce than /rpc waits by default.
const patient = { timeout: 120_000, fetchOptions: { headers: { Prefer: "wait=60" } } };
const settings = { chain: foundry, transport: http(url, patient), pollingInterval: 200 };
const wallet = createWalletClient(settings);
const reader = createPublicClient(settings);
const sends = Array.from({ length: Number(count) }, (_, i) =>
  wallet.sendTransaction({ account, to, value: BigInt(i + 1) }),
);
const hashes = await Promise.all(sends);
const receipts = await Promise.all(hashes.map((hash) => reader.waitForTransactionReceipt({ hash, timeout: 120_000 })));
if (receipts.some((receipt) => receipt.status !== "success")) throw new Error("a transaction failed");
console.log(JSON.stringify(hashes));
