// Agents on the AI SDK. Run with the folder of its packages as working directory: one job per line of the input.

import { createInterface } from "node:readline";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";

const PARAMETERS = {
    type: "object",
    properties: { q: { type: "string" } },
    required: ["q"],
    additionalProperties: false,
};

function modelOf(form, job) {
    const headers = { "LoopGuard-Key": job.key, "LoopGuard-Session": job.session };
    const settings = { apiKey: "sk-test", headers };
    if (form === "anthropic") {
        return createAnthropic({ ...settings, baseURL: `${job.base_url}/v1` })("claude-x");
    }
    return createOpenAI({ ...settings, baseURL: job.base_url })[form]("gpt-x");
}

async function run(job) {
    let runs = 0;
    const execute = (name) => ({ q }) => {
        runs += 1;
        return q === "reset password" ? "0 hits" : `${name} found ${[...q].reduce((sum, one) => sum * 31 + one.charCodeAt(0), 7)} lines`;
    };
    const tools = Object.fromEntries(
        ["search", "read", "other"].map((name) => [
            name,
            tool({ inputSchema: jsonSchema(PARAMETERS), execute: execute(name) }),
        ]),
    );
    const [form, isStream] = job.form.split("_");
    const controller = new AbortController();
    if (job.timeout) setTimeout(() => controller.abort(new Error("timeout")), job.timeout * 1000).unref();
    const request = {
        model: modelOf(form, job),
        prompt: "reset my password",
        tools,
        stopWhen: isStepCount(job.is_faulty ? 1 : 20),
        maxRetries: job.max_retries ?? 2,
        abortSignal: controller.signal,
    };
    if (!isStream) {
        const { text } = await generateText(request);
        return { runs, text };
    }
    const errors = [];
    const stream = streamText({ ...request, onError: ({ error }) => errors.push(error) });
    for await (const text of stream.textStream) {
        seen += text;
        if (job.cancels) controller.abort();
    }
    if (errors.length) throw errors[0];
    if (controller.signal.aborted) throw Object.assign(new Error("aborted"), { name: "Cancelled" });
    return { text: await stream.text, runs };
}

let seen = "";
for await (const line of createInterface({ input: process.stdin })) {
    seen = "";
    const done = await run(JSON.parse(line)).catch((error) => ({
        runs: -1,
        text: "",
        error: String(error.stack),
        type: error.name,
        status: (error.lastError ?? error).statusCode,
    }));
    console.log(JSON.stringify({ ...done, seen }));
}
