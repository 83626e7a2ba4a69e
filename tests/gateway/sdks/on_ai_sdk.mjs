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
        return q === "reset password" ? "0 hits" : `${name} found ${q}`;
    };
    const tools = Object.fromEntries(
        ["search", "read", "other"].map((name) => [
            name,
            tool({ inputSchema: jsonSchema(PARAMETERS), execute: execute(name) }),
        ]),
    );
    const [form, isStream] = job.form.split("_");
    const request = {
        model: modelOf(form, job),
        prompt: "reset my password",
        tools,
        stopWhen: isStepCount(20),
    };
    if (!isStream) {
        const { text } = await generateText(request);
        return { runs, text };
    }
    const errors = [];
    const stream = streamText({ ...request, onError: ({ error }) => errors.push(error) });
    await stream.consumeStream();
    if (errors.length) throw errors[0];
    return { text: await stream.text, runs };
}

for await (const line of createInterface({ input: process.stdin })) {
    const done = await run(JSON.parse(line)).catch((error) => ({ runs: -1, text: "", error: String(error.stack) }));
    console.log(JSON.stringify(done));
}
